"""The documentation on the site and in the repository: every page is listed, and every
link has a target.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NAV = re.compile(r"^ +- .*?: (\S+\.md)$", re.MULTILINE)
READMES = sorted((ROOT / "packages").glob("*/README.md"))
OUTSIDE = {
    "index.md",
    "changelog.md",
    "contributing.md",
    "benchmarks.md",
    "embedded-model.md",
    *(f"packages/{readme.parent.name}.md" for readme in READMES),
}
"""Pages that `docs/site_pages.py` adds."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "training" / "tiny" / "README.md",
    *READMES,
    *sorted((ROOT / "docs").rglob("*.md")),
]


def without_code(text: str) -> str:
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()#]", "", code[0]), text)


def anchors(page: Path) -> set[str]:
    """Return the ids of a page's headings, as GitHub and the site generate them."""
    headings = re.findall(
        r"^#{1,6} (.+)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE
    )
    plain = (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings
    )
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in plain}


def links(page: Path) -> Iterator[str]:
    for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_docs_links_have_targets(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), target


def test_docs_pages_are_in_navigation_once() -> None:
    listed = NAV.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2])
    pages = {file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(pages | OUTSIDE)


@pytest.mark.skipif(find_spec("mkdocstrings") is None, reason="needs mkdocstrings: make docs")
def test_docs_site_builds_without_warning_or_external_resources(
    tmp_path: Path,
) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done: Any = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 50
    loaded = (
        r"<(?:script|img|iframe)[^>]* src=\"?https?:|<link[^>]* "
        r"rel=\"?(?:stylesheet|preconnect)[^>]* href=\"?https?:"
    )
    assert [
        page.name for page in pages if re.search(loaded, page.read_text(encoding="utf-8"))
    ] == []
