"""A progress bar on stderr for long work; plain lines where nobody watches."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from ninfer.cli.output import notice

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressBar:
    """Shows how far a piece of work is, in bytes or in pieces.

    At a terminal it is a bar with rate and remaining time; otherwise one line when the work starts, because a log of
    percentages helps nobody. rich is imported at the first update: work that has nothing to do pays nothing.
    """

    def __init__(self, title: str, *, counts: Literal["bytes", "pieces"] = "bytes") -> None:
        self.title = title
        self._counts = counts
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, done: int, total: int) -> None:
        """`done` of `total` are through."""
        if not self._started:
            self._start()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total)

    def _start(self) -> None:
        self._started = True
        if not sys.stderr.isatty():
            notice(self.title)
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn() if self._counts == "bytes" else MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(self.title, total=None)
        self._progress.start()
