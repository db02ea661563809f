"""Shows the progress of a download: a bar on a terminal, a line every ten percent elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from ..hub import DownloadEvent, format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

log = logging.getLogger(__name__)

STEP_PERCENT = 10


class DownloadDisplay:
    """The progress of one download. Entered as a context manager, it draws a bar if standard error is a terminal.

    print_line: prints a line elsewhere; by default it is logged.
    """

    def __init__(self, name: str, print_line: Callable[[str], None] = log.info) -> None:
        self._name, self._print_line = name, print_line
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._next_percent = STEP_PERCENT

    def __enter__(self) -> None:
        if not sys.stderr.isatty():
            return
        from rich.console import Console  # noqa: PLC0415 - it costs a tenth of a second
        from rich.progress import (  # noqa: PLC0415 - as above
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._name, total=None)
        self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, event: DownloadEvent) -> None:
        """Show an event of the download."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=event.all_completed, total=event.all_total)
            return
        percent = 100 * event.all_completed // event.all_total if event.all_total else 100
        if percent >= self._next_percent:
            self._next_percent = percent - percent % STEP_PERCENT + STEP_PERCENT
            done, total = format_bytes(event.all_completed), format_bytes(event.all_total)
            self._print_line(f"{self._name}: downloaded {percent} % ({done} of {total})")
