"""Figures as they are read: rounded here and nowhere before, with a real minus sign."""

from __future__ import annotations

from ninfer.bench.compare.differences import Unrecorded
from ninfer.bench.compare.quantities import Quantity
from ninfer.bench.records.facts import Value

NOTHING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"


def fixed(value: float | None, digits: int) -> str:
    """With thousands separators; a dash for a figure that is not there. What rounds to nothing has no sign."""
    if value is None:
        return NOTHING
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", MINUS)


def percent(share: float | None, digits: int = 1) -> str:
    """A share as "70.3 %"."""
    return NOTHING if share is None else f"{fixed(100 * share, digits)} %"


def signed(share: float | None, digits: int = 2) -> str:
    """A change with its sign, "+4.74 %"; what rounds to nothing has no sign."""
    if share is None:
        return NOTHING
    text = f"{100 * share:+.{digits}f}"
    return f"{text.lstrip('+-') if float(text) == 0 else text.replace('-', MINUS)} %"


def signed_number(value: float) -> str:
    """A difference as "+1.155"; what rounds to nothing has no sign."""
    text = f"{value:+.3f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", MINUS)


def quantity_digits(quantity: Quantity) -> int:
    """Rates to a hundredth, times to a millisecond."""
    return 3 if quantity.unit == "s" else 2


def fact_text(value: Value | Unrecorded, unrecorded: str) -> str:
    """The value of a fact; null is "none", and what was not recorded says so."""
    if isinstance(value, Unrecorded):
        return unrecorded
    if isinstance(value, list):
        return ", ".join(fact_text(item, unrecorded) for item in value)
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
