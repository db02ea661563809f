"""Every file and folder of the repository that a page names in code exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("packages", "tests", "docs", "deploy", "benchmarks", "training", "requirements")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "training" / "tiny" / "README.md",
    *sorted((ROOT / "packages").glob("*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
OTHERS = {"dist/", "ollama_chat/", "org/"}
"""Names in this form that are no folders of the repository."""
CODE = re.compile(r"`([\w./-]+/[\w./-]*)`")


@cache
def list_paths() -> frozenset[str]:
    """List the files and folders, each with all shorter forms of its path:
    `core/events.py` is one of `packages/dragoman/src/dragoman/core/events.py`.
    """
    paths: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder, *(ROOT / folder).rglob("*")):
            if not {"node_modules", "__pycache__"} & set(path.parts):
                parts = path.relative_to(ROOT).parts
                paths |= {"/".join(parts[start:]) for start in range(len(parts))}
    return frozenset(paths)


def find_missing(page: str) -> list[str]:
    """List the paths that a page names and that do not exist: those of Python files, of
    anything in a folder of the repository, and of folders that end in a slash. `NAME`
    stands for any name.
    """
    return [
        name
        for name in CODE.findall(page)
        if (name.endswith((".py", "/")) or name.startswith(tuple(f"{each}/" for each in FOLDERS)))
        and not name.startswith(("/", ".", "http"))
        and not re.search("[A-Z]{4}", name)
        and name not in OTHERS
        and name.rstrip("/") not in list_paths()
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_docs_exist(page: Path):
    assert find_missing(page.read_text(encoding="utf-8")) == []


def test_find_missing_reports_only_unknown_paths():
    page = "`core/events.py`, `core/no.py`, `packages/no`, `serving/`, `no/`, `org/name`"
    assert find_missing(page) == ["core/no.py", "packages/no", "no/"]
