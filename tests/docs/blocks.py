"""Parse the parts of a documentation page that a test runs: Markdown fences after a
comment.

    <!-- test -->             run the next fence: python, or console with lines that begin
                              with `$ `
    <!-- test: ARGUMENTS -->  the same, while `dragoman serve ARGUMENTS` runs; `none`: no
                              server; default: tiny
    <!-- output -->           the next fence is the expected output of the previous python
    <!-- file: NAME -->       the next fence is a file, for the rest of the page

`...` in expected output matches anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

Kind = Literal["test", "output", "file"]
_MARK = re.compile(r"<!-- (test|output|file)(?:: ([^>]+?))? -->")


class BlockError(Exception):
    """A page has an invalid marker."""


class Block(Struct, frozen=True):
    """A marked fence.

    line: where the fence begins, from 1.
    """

    kind: Kind
    argument: str
    language: str
    text: str
    line: int


class Command(Struct, frozen=True):
    """A command line and its expected output."""

    text: str
    output: str


def blocks(page: str) -> Iterator[Block]:
    """Return the marked fences of a page. Raises BlockError for an unknown marker and
    for one without a fence.
    """
    lines = page.splitlines()
    at = 0
    while at < len(lines):
        mark = _MARK.fullmatch(lines[at].strip())
        if mark is None:
            _check_no_mark(lines[at], at)
            at = _after_fence(lines, at) if lines[at].startswith("```") else at + 1
            continue
        start = next(
            (index for index in range(at + 1, len(lines)) if lines[index].strip()), len(lines)
        )
        if start == len(lines) or not lines[start].startswith("```"):
            raise BlockError(f"line {at + 1}: no fence follows {lines[at].strip()}")
        at = _after_fence(lines, start)
        text = "\n".join(lines[start + 1 : at - 1]) + "\n"
        kind: Kind = "test" if mark[1] == "test" else "output" if mark[1] == "output" else "file"
        yield Block(kind, mark[2] or "", lines[start].removeprefix("```").strip(), text, start + 1)


def _after_fence(lines: list[str], start: int) -> int:
    end = next(
        (index for index in range(start + 1, len(lines)) if lines[index].rstrip() == "```"), None
    )
    if end is None:
        raise BlockError(f"line {start + 1}: this fence is never closed")
    return end + 1


def _check_no_mark(line: str, at: int) -> None:
    if re.match(r"\s*<!--\s*(tests?|outputs?|files?)\b", line):
        raise BlockError(f"line {at + 1}: {line.strip()} is no mark")


def commands(console: str) -> list[Command]:
    """Parse a console fence into commands with their outputs. A line that ends in a
    backslash continues.
    """
    found: list[Command] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ""))
        elif not found:
            raise BlockError(f"{line!r} comes before any command")
        elif found[-1].text.endswith("\\") and not found[-1].output:
            found[-1] = Command(f"{found[-1].text}\n{line.removeprefix('> ')}", "")
        else:
            found[-1] = Command(found[-1].text, f"{found[-1].output}{line}\n")
    return found


def prints(expected: str, printed: str) -> bool:
    """Whether the output matches the page. Without an expectation any output does."""
    if not expected.strip():
        return True
    first, *rest = (" ".join(piece.split()) for piece in expected.split("..."))
    text = " ".join(printed.split())
    if not rest:
        return first == text
    *middle, last = rest
    if len(first) + len(last) > len(text) or not text.startswith(first) or not text.endswith(last):
        return False
    at = len(first)
    end = len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
