"""How sequences keep recurrent state, as a memory calculation.

Bytes of one sequence, with s bytes of a slot, j bytes of a journal row and V rows of a verify block:

    slots    V * s             every row's state is saved, one is kept
    replay   s + 2 * V * j     the state before the block stays, rows are replayed from a journal while another fills

Both give the same bits. Replay also moves less memory in a step, so where it is smaller nothing speaks for slots.
Without verification (V = 1) one slot is all that a sequence needs.
"""

from __future__ import annotations

from ninfer.cache import StateLayout
from ninfer.engine.plan import Choice, StatePlan
from ninfer.models.state import StateSizes


def plan_state(sizes: StateSizes, *, verify_rows: int = 1) -> tuple[StatePlan, Choice]:
    """The cheaper way to keep state, without snapshots, and why."""
    by_slots = verify_rows * sizes.slot_bytes
    by_replay = sizes.slot_bytes + 2 * verify_rows * sizes.journal_row_bytes
    costs = f"for {verify_rows} rows of a block, slots take {by_slots} bytes of each sequence and replay {by_replay}"
    if verify_rows == 1:
        layout = StateLayout()
        costs = f"every step is kept as a whole, and one slot of {sizes.slot_bytes} bytes is enough for a sequence"
    else:
        layout = StateLayout("replay" if by_replay < by_slots else "slots", verify_rows)
    return StatePlan(layout), Choice("rollback", layout.rollback, costs)
