"""A progress bar on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import click

OnProgress = Callable[[int], None]
"""Called with the number of completed items."""


@contextmanager
def show_progress(
    label: str, total: int, format_count: Callable[[int], str] = str
) -> Generator[OnProgress]:
    """Show a progress bar while the block runs, if standard error is a terminal.

    label: what it shows the progress of.
    total: number of items.
    format_count: formats a number of items.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return

    def format_position(completed: int | None) -> str:
        return f"{format_count(completed or 0)}/{format_count(total)}"

    with click.progressbar(
        length=total, label=label, file=sys.stderr, item_show_func=format_position
    ) as bar:
        yield lambda completed: bar.update(completed - bar.pos, completed)
