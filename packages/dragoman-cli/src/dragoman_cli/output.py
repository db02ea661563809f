"""What commands print: errors, warnings and tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click


@contextmanager
def report_errors(*kinds: type[Exception]) -> Generator[None]:
    """Report errors in files and options as one line without a traceback, and exit with
    code 2.

    kinds: types of errors to report, besides ValueError and OSError.
    """
    try:
        yield
    except (ValueError, OSError, *kinds) as error:
        if isinstance(error, OSError) and error.filename:
            print_error(f"{error.filename}: {error.strerror}")
        else:
            print_error(str(error))
        raise click.exceptions.Exit(2) from None


def print_error(message: str) -> None:
    """Print an error to standard error, in red on a terminal."""
    print_text(click.style(f"Error: {message}", "red"), err=True)


def print_warning(message: str) -> None:
    """Print a warning to standard error, in yellow on a terminal."""
    print_text(click.style(f"Warning: {message}", "yellow"), err=True)


def print_text(text: str, *, err: bool = False) -> None:
    """Print a line of styled text, with its colors only on a terminal.

    err: print to standard error.
    """
    # https://no-color.org: any non-empty value disables colors, even on a terminal.
    click.echo(text, err=err, color=False if os.environ.get("NO_COLOR") else None)


def read_file(path: str) -> bytes:
    """Read a file; `-` is the standard input. Raises OSError."""
    return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()


def render_table(rows: Sequence[Sequence[str]], *, right: bool = False) -> str:
    """Render rows as columns two spaces apart, a line each.

    rows: the first is the header.
    right: align all columns but the first to the right, as numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(width) if right and column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
