"""The tour of the code names files that exist, about 2,000 lines together."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tour.md"
ROW = re.compile(r"^\| (\d+) \| \[`([^`]+)`\]\(([^)]+)\) \| (\d+) \|", re.MULTILINE)
SOURCE = ROOT / "packages" / "dragoman" / "src" / "dragoman"


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_tour_names_files_with_their_line_counts():
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    for _, name, link, lines in rows:
        path = (PAGE.parent / link).resolve()
        assert path == SOURCE / name
        assert abs(count_lines(path) - int(lines)) <= max(20, 0.15 * int(lines)), name


def test_tour_has_about_2000_lines():
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert 1600 <= sum(count_lines(SOURCE / name) for _, name, *_ in rows) <= 2500


def test_tour_describes_every_file_in_order():
    text = PAGE.read_text(encoding="utf-8")
    described = [int(number) for number in re.findall(r"^\*\*(\d+)\. ", text, re.MULTILINE)]
    assert described == list(range(1, len(ROW.findall(text)) + 1))
