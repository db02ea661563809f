"""Lines of prose have at most 88 columns. Code, tables, headings and comments may have
more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH = 88
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "training" / "tiny" / "README.md",
    *sorted((ROOT / "packages").glob("*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def find_long_lines(page: str) -> Iterator[int]:
    """Yield the numbers, from 1, of the lines that could be broken."""
    page = re.sub(
        r"(?s)<!-- table: .*?<!-- end -->", lambda table: "\n" * table[0].count("\n"), page
    )
    is_code = False
    for number, line in enumerate(page.splitlines(), 1):
        text = line.strip()
        if text.startswith("```"):
            is_code = not is_code
        elif not is_code and len(line) > WIDTH and not text.startswith(("#", "|", "<", ":::")):
            words = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "_"), text).split()
            if len(words) > 1 and not line.startswith("    "):
                yield number


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_fits_88_columns(page: Path):
    assert list(find_long_lines(page.read_text(encoding="utf-8"))) == []


def test_find_long_lines_ignores_code_and_tables():
    words = "word " * 20
    page = f"{words}\n\n| {words} |\n\n```text\n{words}\n```\n\n`{words}`\n\n# {words}\n"
    assert list(find_long_lines(page)) == [1]
