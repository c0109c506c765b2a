"""The step a model runs, and the check that a step is one the executable can run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ninfer.errors import InvariantError
from ninfer.ops.batch import PAGE_TOKENS, ForwardBatch, SequenceRows, StateAccess

__all__ = ["PAGE_TOKENS", "BatchLimits", "ForwardBatch", "SequenceRows", "StateAccess", "check_batch"]

_SHORT = 256


@dataclass(frozen=True)
class BatchLimits:
    """What an executable was compiled for. `num_state_slots` is 0 for a graph without recurrent layers."""

    vocab_size: int
    max_rows: int
    max_logit_rows: int
    num_pages: int
    num_state_slots: int = 0
    num_journals: int = 0
    journal_rows: int = 0


def check_batch(batch: ForwardBatch, limits: BatchLimits) -> None:
    """InvariantError that names the field, unless the batch can be run without touching what it must not.

    Besides shapes and ranges: sequences own all rows in order, have pages for all their tokens, and write to pages,
    state slots and journals that nobody else in the step reads or writes.
    """
    rows = _check_ids("token_ids", batch.token_ids, limits.vocab_size)
    if not 1 <= rows <= limits.max_rows:
        raise InvariantError(f"batch has {rows} rows; 1 to {limits.max_rows} can be run")
    wanted = _check_ids("logit_rows", batch.logit_rows, rows)
    if wanted > limits.max_logit_rows:
        raise InvariantError(f"batch wants logits of {wanted} rows; at most {limits.max_logit_rows} can be given")
    _check_sequences(batch.sequences, rows)
    _check_pages(batch.sequences, limits.num_pages)
    if limits.num_state_slots == 0:
        if any(sequence.state is not None for sequence in batch.sequences):
            raise InvariantError("a sequence has a state access; the model has no recurrent layers")
        return
    for index, sequence in enumerate(batch.sequences):
        problem = _state_problem(sequence, limits)
        if problem:
            raise InvariantError(f"state access of sequence {index}: {problem}")
    if len(batch.sequences) > 1:
        _check_state_sharing([sequence.state for sequence in batch.sequences if sequence.state is not None])


def _check_ids(name: str, ids: npt.NDArray[np.int32], limit: int) -> int:
    """The length of a one-dimensional int32 array whose values are in `0 .. limit`."""
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int32 or ids.ndim != 1:
        seen = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, np.ndarray) else type(ids).__name__
        raise InvariantError(f"{name} must be an int32 vector, got {seen}")
    if len(ids):
        # This runs between any two decode steps: a short list is searched before NumPy has begun on an array.
        values = ids.tolist() if len(ids) <= _SHORT else (int(ids.min()), int(ids.max()))
        low, high = min(values), max(values)
        if low < 0 or high >= limit:
            raise InvariantError(f"{name} has values from {low} to {high}; 0 to {limit - 1} are allowed")
    return len(ids)


def _check_sequences(sequences: tuple[SequenceRows, ...], rows: int) -> None:
    covered = 0
    for index, sequence in enumerate(sequences):
        if sequence.start != covered or sequence.count < 1 or sequence.position < 0:
            raise InvariantError(
                f"sequence {index} has {sequence.count} rows from row {sequence.start}, position {sequence.position}; "
                f"needed: at least one row, from row {covered} on, at a position of 0 or more"
            )
        covered += sequence.count
    if covered != rows:
        raise InvariantError(f"sequences own {covered} of {rows} rows")


def _check_pages(sequences: tuple[SequenceRows, ...], num_pages: int) -> None:
    in_use = []
    for index, sequence in enumerate(sequences):
        needed = -(-(sequence.position + sequence.count) // PAGE_TOKENS)
        given = _check_ids(f"pages of sequence {index}", sequence.pages, num_pages)
        if given < needed:
            raise InvariantError(f"sequence {index} has {given} pages and needs {needed}")
        in_use.append(sequence.pages[:needed])
    # A sequence that decodes alone writes to its last page only; that page being there once is all there is to see.
    alone = len(sequences) == 1 and sequences[0].position // PAGE_TOKENS == len(in_use[0]) - 1
    if alone and in_use[0].tolist().count(int(in_use[0][-1])) == 1:
        return
    users = np.bincount(np.concatenate(in_use), minlength=num_pages)
    for index, sequence in enumerate(sequences):
        written = in_use[index][sequence.position // PAGE_TOKENS :]
        shared = written[users[written] > 1]
        if len(shared):
            raise InvariantError(f"sequence {index} writes to page {shared[0]}, which the step uses elsewhere too")


def _state_problem(sequence: SequenceRows, limits: BatchLimits) -> str:
    """What is wrong with how one sequence uses slots and journals, or nothing."""
    access = sequence.state
    if access is None:
        return "there is none; the model has recurrent layers"
    if access.read is not None and not 0 <= access.read < limits.num_state_slots:
        return f"reads slot {access.read}; 0 to {limits.num_state_slots - 1} exist"
    replayed = 0 if access.replay is None else access.replay[1]
    if (access.read is None) != (sequence.position == replayed):
        read = "no slot" if access.read is None else f"slot {access.read}"
        return (
            f"reads {read} at position {sequence.position} with {replayed} replayed rows; none is for position 0 only"
        )
    before, slots = 0, []
    for count, slot in access.saves:
        if not before <= count <= sequence.count:
            return f"saves after {count} rows, after {before} and of {sequence.count}; counts ascend"
        if not 0 <= slot < limits.num_state_slots or slot in slots:
            return f"saves to slot {slot}; 0 to {limits.num_state_slots - 1} exist, each is saved to once"
        before = count
        slots.append(slot)
    if access.replay is not None or access.journal is not None:
        return _journal_problem(access, sequence.count, limits)
    return ""


def _journal_problem(access: StateAccess, count: int, limits: BatchLimits) -> str:
    replay = (None, 1) if access.replay is None else access.replay
    for journal in (replay[0], access.journal):
        if journal is not None and not 0 <= journal < limits.num_journals:
            return f"uses journal {journal} of {limits.num_journals}"
    if not 1 <= replay[1] <= limits.journal_rows:
        return f"replays {replay[1]} rows; 1 to {limits.journal_rows} are kept"
    if access.journal is not None and count > limits.journal_rows:
        return f"keeps {count} rows in a journal of {limits.journal_rows}"
    if access.journal is not None and access.journal == replay[0]:
        return f"replays journal {access.journal} and overwrites it"
    return ""


def _check_state_sharing(accesses: list[StateAccess]) -> None:
    """InvariantError if a sequence writes to a slot or journal that another one of the step reads or writes."""
    writer: dict[tuple[str, int], int] = {}
    for index, access in enumerate(accesses):
        written = [("slot", slot) for _, slot in access.saves]
        if access.journal is not None:
            written.append(("journal", access.journal))
        for target in written:
            if target in writer:
                raise InvariantError(f"sequences {writer[target]} and {index} write to {target[0]} {target[1]}")
            writer[target] = index
    for index, access in enumerate(accesses):
        for kind, number in (("slot", access.read), ("journal", access.replay[0] if access.replay else None)):
            owner = index if number is None else writer.get((kind, number), index)
            if owner != index:
                raise InvariantError(f"sequence {owner} writes to {kind} {number}, which sequence {index} reads")
