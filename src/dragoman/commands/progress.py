"""How far a long run is, on a terminal; nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

OnProgress = Callable[[int], None]
"""Called with the number of things done so far."""


@contextmanager
def show_progress(label: str, total: int) -> Generator[OnProgress]:
    """A bar on the standard error if that is a terminal, gone when the work is done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - it costs a tenth of a second
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress_bar:
        task = progress_bar.add_task(label, total=total)
        yield lambda done: progress_bar.update(task, completed=done)
