"""Drawings of a report as inline SVG: no library, the same bytes from the same figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ninfer.bench.report.numbers import MINUS

COLORS = ("var(--a)", "var(--b)", "var(--c)", "var(--d)", "var(--e)", "var(--f)")
"""Told apart by readers without full colour vision (Okabe and Ito's palette); set in html.py."""

WIDTH = 680
LABEL_WIDTH = 170
TICK_DISTANCE = 60
RATIO_TICKS = (1.01, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0, 100.0)
"""Ratios that an axis of changes may name, and with each its inverse."""


@dataclass(frozen=True)
class Bar:
    """One line of an interval plot: a share and, if there is one, its interval."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


def interval_plot(bars: Sequence[Bar], title: str, axis: str) -> str:
    """Changes with their intervals around a line at zero, on an axis of ratios: twice and half as fast are equally far.

    A change has to be above -1.
    """
    edges = [edge for bar in bars for edge in (bar.value, bar.low, bar.high) if edge is not None]
    reach = max([0.01, *(abs(math.log1p(edge)) for edge in edges)]) * 1.1
    height = 26 * len(bars) + 46

    def x(share: float) -> float:
        return LABEL_WIDTH + (math.log1p(share) + reach) / (2 * reach) * (WIDTH - LABEL_WIDTH - 20)

    parts = [_line(x(0), 8, x(0), height - 34, "var(--quiet)", 1)]
    for place, bar in enumerate(bars):
        y = 20 + 26 * place
        parts.append(_text(LABEL_WIDTH - 10, y + 4, bar.label, "end"))
        if bar.low is not None and bar.high is not None:
            parts.append(_line(x(bar.low), y, x(bar.high), y, COLORS[0], 3))
        parts.append(_dot(x(bar.value), y, COLORS[0]))
    last = 0.0
    parts.append(_text(x(0), height - 20, "0", "middle"))
    for ratio in RATIO_TICKS:
        step = math.log(ratio) / (2 * reach) * (WIDTH - LABEL_WIDTH - 20)
        if math.log(ratio) < reach and step - last >= TICK_DISTANCE:
            last = step
            for share in (ratio - 1, 1 / ratio - 1):
                label = f"{round(100 * share, 1):+g} %".replace("-", MINUS)
                parts.append(_text(x(share), height - 20, label, "middle"))
    parts.append(_text(x(0), height - 4, axis, "middle"))
    return _svg(height, title, parts)


@dataclass(frozen=True)
class Series:
    """One run in a dot plot: a value per row, None where it has none."""

    label: str
    values: Sequence[float | None]


def dot_plot(rows: Sequence[str], series: Sequence[Series], title: str, axis: str) -> str:
    """Values of several runs by row, in one colour per run, on an axis that begins at zero."""
    top = max([value for one in series for value in one.values if value is not None], default=1.0) * 1.05
    base = 30 * len(rows) + 22

    def x(value: float) -> float:
        return LABEL_WIDTH + value / top * (WIDTH - LABEL_WIDTH - 20)

    parts = []
    for place, row in enumerate(rows):
        y = 20 + 30 * place
        parts += [_text(LABEL_WIDTH - 10, y + 4, row, "end"), _line(x(0), y, x(top), y, "var(--line)", 1)]
        for index, one in enumerate(series):
            value = one.values[place]
            if value is not None:
                parts.append(_dot(x(value), y - 6 + 12 * (index + 0.5) / len(series), _color(index)))
    parts += [_text(x(value), base, f"{value:g}", "middle") for value in _ticks(0, top)]
    parts.append(_text((x(0) + x(top)) / 2, base + 16, axis, "middle"))
    legend, height = _legend([one.label for one in series], LABEL_WIDTH, base + 38)
    return _svg(height, title, [*parts, *legend])


@dataclass(frozen=True)
class RoundPoint:
    """One run's decoding: tokens per round and milliseconds per round."""

    label: str
    tokens: float
    round_ms: float


def rounds_plot(points: Sequence[RoundPoint], title: str, across: str, upwards: str) -> str:
    """Tokens per round against round time. A line from the origin is one speed: below it is faster, above it slower."""
    right, top = 1.15 * max(point.tokens for point in points), 1.2 * max(point.round_ms for point in points)
    bottom, left = 270, 70

    def at(tokens: float, ms: float) -> tuple[float, float]:
        return left + tokens / right * (WIDTH - left - 20), bottom - ms / top * (bottom - 20)

    parts = [_line(*at(0, 0), *at(right, 0), "var(--quiet)", 1), _line(*at(0, 0), *at(0, top), "var(--quiet)", 1)]
    for index, point in enumerate(points):
        reach = min(right / point.tokens, top / point.round_ms)
        parts.append(_line(*at(0, 0), *at(reach * point.tokens, reach * point.round_ms), _color(index), 1, dashed=True))
        x, y = at(point.tokens, point.round_ms)
        parts.append(_dot(x, y, _color(index), 6))
    parts += [_text(at(value, 0)[0], bottom + 16, f"{value:g}", "middle") for value in _ticks(0, right)]
    parts += [_text(left - 8, at(0, value)[1] + 4, f"{value:g}", "end") for value in _ticks(0, top)]
    parts += [_text((left + WIDTH - 20) / 2, bottom + 36, across, "middle"), _text(left, 14, upwards, "middle")]
    labels = [f"{point.label}: {1000 * point.tokens / point.round_ms:.1f} tok/s" for point in points]
    legend, height = _legend(labels, left, bottom + 58)
    return _svg(height, title, [*parts, *legend])


def _legend(labels: Sequence[str], left: float, top: float) -> tuple[list[str], int]:
    """A line per label in the order of colours, and the height of a drawing that ends with it: names may be long."""
    parts = []
    for index, label in enumerate(labels):
        y = top + 18 * index
        parts += [_dot(left, y - 4, _color(index)), _text(left + 10, y, label, "start")]
    return parts, round(top) + 18 * len(labels)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers between `low` and `high`."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (step * factor) <= 6)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(place * step, 10) for place in range(first, last + 1)]


def _color(index: int) -> str:
    return COLORS[index % len(COLORS)]


def _line(x1: float, y1: float, x2: float, y2: float, color: str, width: int, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 4"' if dashed else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"{dash}/>'
    )


def _dot(x: float, y: float, color: str, radius: int = 5) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )
