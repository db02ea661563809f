"""What commands print: errors, warnings and tables."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click


class CommandError(Exception):
    """Base class of errors whose message is meant for the user of a command."""


@contextmanager
def report_errors() -> Generator[None]:
    """Report errors in files and options as one line without a traceback, and exit with code 2."""
    try:
        yield
    except (CommandError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.filename:
            print_error(f"{error.filename}: {error.strerror}")
        else:
            print_error(str(error))
        raise click.exceptions.Exit(2) from None


def print_error(message: str) -> None:
    """Print an error to standard error, in red on a terminal."""
    _print_colored(f"Error: {message}", "red")


def print_warning(message: str) -> None:
    """Print a warning to standard error, in yellow on a terminal."""
    _print_colored(f"Warning: {message}", "yellow")


def _print_colored(line: str, color: str) -> None:
    # https://no-color.org: any non-empty value disables colors, even on a terminal.
    has_color = False if os.environ.get("NO_COLOR") else None
    click.secho(line, fg=color, err=True, color=has_color)


def read_file(path: str) -> bytes:
    """Read a file; `-` is the standard input. Raises OSError."""
    return click.get_binary_stream("stdin").read() if path == "-" else Path(path).read_bytes()


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
