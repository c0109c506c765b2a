"""Ctrl-C between steps instead of in the middle of one."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class InterruptFlag:
    """While entered, the first Ctrl-C sets `is_set` and nothing else; a second one interrupts at once, as usual.

    A generation looks at the flag after each step, so the engine never stops between a commit and the event that tells
    of it, and what was generated can still be reported. Main thread only, as all signal handling in Python.
    """

    def __init__(self) -> None:
        self.is_set = False

    def __enter__(self) -> InterruptFlag:
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True
