"""A progress bar on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import click

OnProgress = Callable[[int], None]
"""Called with the number of completed items."""


@contextmanager
def show_progress(label: str, total: int) -> Generator[OnProgress]:
    """Show a progress bar while the block runs, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True) as bar:
        yield lambda done: bar.update(done - bar.pos)
