"""Mutating valid files and reading the result: a reader may refuse with its own error, nothing else, in bounded room.

The sequence of inputs depends on the seed only; how far it is followed depends on the time budget: NINFER_FUZZ_SECONDS
(default 15). A failure names the run, leaves its input at `path`, and `mutant(..., run)` makes it again.
"""

from __future__ import annotations

import os
import random
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_SECONDS = 15.0
MEMORY_BYTES = 512 << 20
CPU_SECONDS = 10.0
"""Far more than any small file may take to read: what exceeds it hangs."""

_NUMBERS = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 65535, 65536]
_NUMBERS += [2**bits + delta for bits in (31, 32, 62, 63, 64) for delta in (-1, 0, 1)]
_TEXT_NUMBERS = [b"-1", b"-0", b"1.5", b"1e9", b"1e999", b"NaN", b"true", b"null", b"[]", b"{}", b'""', b"9" * 400]

Repair = Callable[[bytes], bytes]


@dataclass
class Outcome:
    """What happened: a fuzz test should also state that both counts are plausible, or it tests nothing."""

    runs: int = 0
    accepted: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    """How often each field of an error was named; errors without a field count under their type."""


class FuzzError(AssertionError):
    """The reader raised something else than its own error, or took too long."""


def fuzz(
    read: Callable[[Path], object],
    seeds: Sequence[bytes],
    path: Path,
    *,
    refuses_with: type[Exception] | tuple[type[Exception], ...],
    seed: int = 0,
    repairs: Sequence[Repair] = (),
    dictionary: Sequence[bytes] = (),
    seconds: float | None = None,
) -> Outcome:
    """Write mutants of `seeds` to `path` and `read` them until the time is up.

    `repairs` put checksums and lengths right again, so that mutants get past the first check; each run uses one of them
    or none. `dictionary` holds byte strings of the file type worth inserting. FuzzError on the first wrong behaviour.
    """
    budget = seconds if seconds is not None else float(os.environ.get("NINFER_FUZZ_SECONDS", DEFAULT_SECONDS))
    end = time.monotonic() + budget
    outcome = Outcome()
    for whole in seeds:  # a seed that is refused would waste all its mutants
        path.write_bytes(whole)
        read(path)
    with limited_memory(MEMORY_BYTES):
        while outcome.runs == 0 or time.monotonic() < end:
            run = outcome.runs
            data = mutant(seeds, seed, run, repairs=repairs, dictionary=dictionary)
            path.write_bytes(data)
            started = time.process_time()
            try:
                read(path)
                outcome.accepted += 1
            except refuses_with as error:
                outcome.refusals[str(getattr(error, "field", None) or type(error).__name__)] += 1
            except Exception as error:
                raise FuzzError(f"seed {seed}, run {run}: {type(error).__name__}: {error}; input in {path}") from error
            used = time.process_time() - started
            if used > CPU_SECONDS:
                raise FuzzError(f"seed {seed}, run {run}: {used:.1f} s of processor time; input in {path}")
            outcome.runs += 1
    return outcome


def mutant(
    seeds: Sequence[bytes], seed: int, run: int, *, repairs: Sequence[Repair] = (), dictionary: Sequence[bytes] = ()
) -> bytes:
    """The input of one run: 1 to 4 mutations of one of the seeds, then perhaps a repair."""
    rng = random.Random(f"{seed}:{run}")
    data = bytearray(rng.choice(seeds))
    tokens = list(dictionary) or [b"\0", b"\xff\xff\xff\xff"]
    for _ in range(rng.randint(1, 4)):
        rng.choice(_MUTATIONS)(rng, data, seeds, tokens)
    repair = rng.choice([None, *repairs])
    return repair(bytes(data)) if repair else bytes(data)


@contextmanager
def limited_memory(extra_bytes: int) -> Iterator[None]:
    """Let this process map at most `extra_bytes` more than it has now: greed becomes a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


def _position(rng: random.Random, data: bytearray) -> int:
    """Anywhere, but mostly near the start, where headers are."""
    span = len(data) if rng.random() < 0.4 else min(len(data), 256)
    return rng.randrange(span) if span else 0


def _flip_bit(rng: random.Random, data: bytearray, seeds: Sequence[bytes], tokens: list[bytes]) -> None:
    if data:
        data[_position(rng, data)] ^= 1 << rng.randrange(8)


def _set_byte(rng: random.Random, data: bytearray, seeds: Sequence[bytes], tokens: list[bytes]) -> None:
    if data:
        data[_position(rng, data)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])


def _set_integer(rng: random.Random, data: bytearray, seeds: Sequence[bytes], tokens: list[bytes]) -> None:
    size = rng.choice([2, 4, 8])
    at = _position(rng, data)
    data[at : at + size] = (rng.choice(_NUMBERS) % (1 << 8 * size)).to_bytes(size, "little")


def _set_text_number(rng: random.Random, data: bytearray, seeds: Sequence[bytes], tokens: list[bytes]) -> None:
    found = list(re.finditer(rb"\d+", data))
    if found:
        match = rng.choice(found)
        near = str(int(match[0][:18]) + rng.choice([-64, -1, 1, 64])).encode()
        data[match.start() : match.end()] = rng.choice([near, str(rng.choice(_NUMBERS)).encode(), *_TEXT_NUMBERS])


def _swap_words(rng: random.Random, data: bytearray, seeds: Sequence[bytes], tokens: list[bytes]) -> None:
    """Put one word of the file in the place of another: names, keys and values that exist but not there."""
    found = list(re.finditer(rb"\w[\w./]*", data))
    if len(found) > 1:
        target, source = rng.sample(found, 2)
        data[target.start() : target.end()] = bytes(source[0])


def _insert_token(rng: random.Random, data: bytearray, seeds: Sequence[bytes], tokens: list[bytes]) -> None:
    at = _position(rng, data)
    token = rng.choice(tokens)
    data[at : at + rng.choice([0, len(token)])] = token * rng.choice([1, 1, 1, 2, 300])


def _cut(rng: random.Random, data: bytearray, seeds: Sequence[bytes], tokens: list[bytes]) -> None:
    at = _position(rng, data)
    del data[at : at + rng.choice([1, 2, 4, 8, 64, len(data)])]


def _repeat(rng: random.Random, data: bytearray, seeds: Sequence[bytes], tokens: list[bytes]) -> None:
    at = _position(rng, data)
    size = rng.choice([1, 4, 16, 64, 256])
    data[at:at] = data[at : at + size]


def _splice(rng: random.Random, data: bytearray, seeds: Sequence[bytes], tokens: list[bytes]) -> None:
    other = rng.choice(seeds)
    at = _position(rng, data)
    data[at:] = other[rng.randrange(len(other)) :]


def _append(rng: random.Random, data: bytearray, seeds: Sequence[bytes], tokens: list[bytes]) -> None:
    data.extend(bytes(rng.choice([1, 63, 64, 4096])))


_MUTATIONS = (
    _flip_bit,
    _set_byte,
    _set_integer,
    _set_text_number,
    _set_text_number,
    _swap_words,
    _swap_words,
    _insert_token,
    _cut,
    _repeat,
    _splice,
    _append,
)
