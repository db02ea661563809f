"""docs/security.md names the tests of each of its rows, and covers all of
tests/hardening.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
NAMED = re.findall(r"\]\(\.\./(tests/[\w/]+\.py)\)", PAGE)


def test_security_docs_named_files_exist():
    assert [name for name in NAMED if not (ROOT / name).is_file()] == []


def test_security_docs_name_every_hardening_file():
    files = {
        f"tests/hardening/{file.name}" for file in (ROOT / "tests/hardening").glob("test_*.py")
    }
    assert files - set(NAMED) == set()


def test_security_docs_rows_name_tests():
    rows = [
        line
        for line in (ROOT / "docs/security.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    heads = [row for row in rows if row.endswith("| test |") or set(row) <= set("|- ")]
    assert all("](../tests/" in row for row in rows if row not in heads)


def test_security_docs_name_at_least_40_existing_tests():
    rows = re.findall(
        r"^\| (.+?) \| .+ \| \[[\w.]+\]\(\.\./(tests/[\w/]+\.py)\) `(\w+)` \|$", PAGE, re.MULTILINE
    )
    assert len({what for what, _, _ in rows}) == len(rows) >= 40
    assert [
        name for _, file, name in rows if f"def test_{name}(" not in (ROOT / file).read_text()
    ] == []
