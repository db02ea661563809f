"""docs/security.md names the tests of each of its rows, and covers all files in the
folder `hardening`.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HARDENING = "packages/dragoman/tests/hardening"
PAGE = (ROOT / "docs/security.md").read_text()
LINK = r"\]\(\.\./((?:packages/[\w-]+/)?tests/[\w/]+\.py)\)"
NAMED = re.findall(LINK, PAGE)


def test_security_docs_named_files_exist():
    assert [name for name in NAMED if not (ROOT / name).is_file()] == []


def test_security_docs_name_every_hardening_file():
    files = {f"{HARDENING}/{file.name}" for file in (ROOT / HARDENING).glob("test_*.py")}
    assert files
    assert files - set(NAMED) == set()


def test_security_docs_rows_name_tests():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    heads = [row for row in rows if row.endswith("| test |") or set(row) <= set("|- ")]
    assert [row for row in rows if row not in heads and not re.search(LINK, row)] == []


def test_security_docs_name_at_least_40_existing_tests():
    rows = re.findall(rf"^\| (.+?) \| .+ \| \[[\w.]+{LINK} `(\w+)` \|$", PAGE, re.MULTILINE)
    assert len({what for what, _, _ in rows}) == len(rows) >= 40
    assert [
        name for _, file, name in rows if f"def test_{name}(" not in (ROOT / file).read_text()
    ] == []
