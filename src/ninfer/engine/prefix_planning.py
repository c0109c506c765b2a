"""What may be kept for reuse: how many snapshots of recurrent state, and how often a prompt takes one."""

from __future__ import annotations

from collections.abc import Callable

from ninfer.engine.config import EngineConfig
from ninfer.engine.plan import Choice, PrefixPlan
from ninfer.models.batch import PAGE_TOKENS

SNAPSHOTS_PER_LANE = 4
"""The end of a prompt, the end of its answer, one while the next answer grows, and one where requests part."""

SHARE = 8
"""Automatic snapshots take at most an eighth of the available memory: the rest is for weights and KV."""

MIN_INTERVAL = 512
"""Tokens between snapshots of a prompt at least: computing fewer again is cheaper than a snapshot's memory."""


def plan_snapshots(
    config: EngineConfig, slot_bytes: int, available_bytes: int, fits: Callable[[int], bool]
) -> tuple[int, Choice | None]:
    """How many snapshots there may be, and why. `fits(n)`: whether the rest has room beside n; never comes back."""
    if not config.prefix_reuse:
        return 0, None
    if config.snapshot_mib != "auto":
        return (config.snapshot_mib << 20) // slot_bytes, None
    wanted = SNAPSHOTS_PER_LANE * (config.max_concurrency + 1)
    most = min(wanted, available_bytes // SHARE // slot_bytes)
    count = next((n for n in range(most, 0, -1) if fits(n)), 0)
    reason = f"{count} snapshots of {slot_bytes} bytes, of {SNAPSHOTS_PER_LANE} for each sequence and as many besides"
    if count < wanted:
        reason += f"; an eighth of the {available_bytes} available bytes holds, and the rest leaves room for, no more"
    return count, Choice("snapshot_mib", -(-count * slot_bytes >> 20), reason)


def plan_prefix(
    config: EngineConfig, max_context: int, max_snapshots: int | None
) -> tuple[PrefixPlan | None, Choice | None]:
    """What is reused, and why if something about it is not as asked. `max_snapshots` None: no recurrent state."""
    if not config.prefix_reuse:
        return None, None
    if max_snapshots is None:
        return PrefixPlan(), None
    if max_snapshots == 0:
        return None, Choice("prefix_reuse", "off", "there is no room for a snapshot of recurrent state")
    # A prompt of a full context takes half of the snapshots: those of others survive it.
    pages = -(-max_context // (PAGE_TOKENS * max(1, max_snapshots // 2)))
    interval = max(MIN_INTERVAL, pages * PAGE_TOKENS)
    reason = f"a prompt of {max_context} tokens takes at most half of {max_snapshots} snapshots"
    return PrefixPlan(interval), Choice("snapshot_interval", interval, reason)
