"""Progress bar of a long run; none where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

OnProgress = Callable[[int], None]
"""Called with the number of completed items."""


@contextmanager
def show_progress(label: str, total: int) -> Generator[OnProgress]:
    """A progress bar on standard error if that is a terminal, removed at the end."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - it costs a tenth of a second
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress_bar:
        task = progress_bar.add_task(label, total=total)
        yield lambda done: progress_bar.update(task, completed=done)
