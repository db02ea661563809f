"""Prepares the pages for the site (a hook of mkdocs): those outside of docs/, and links
that leave the site.

The pages are written to be read in the repository. Links to its other files, such as
tests, become plain text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE: Mapping[str, str] = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "training/tiny/README.md": "embedded-model.md",
    "packages/dragoman/README.md": "packages/dragoman.md",
    "packages/dragoman-sim/README.md": "packages/dragoman-sim.md",
    "packages/dragoman-check/README.md": "packages/dragoman-check.md",
    "packages/dragoman-cli/README.md": "packages/dragoman-cli.md",
    "packages/dragoman-http/README.md": "packages/dragoman-http.md",
    "packages/pytest-dragoman/README.md": "packages/pytest-dragoman.md",
}
"""Pages of the repository, with their names in the site."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - the tests of the links do without mkdocs

    for source, name in OUTSIDE.items():
        files.append(
            File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8"))
        )
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    uri = page.file.src_uri
    source = next((source for source, name in OUTSIDE.items() if name == uri), f"docs/{uri}")
    return adapt_links(markdown, source)


def adapt_links(markdown: str, source: str) -> str:
    """The page with links as the site has them. source: its path in the repository."""
    name = find_site_name(source)
    assert name is not None, source

    def adapt(link: re.Match[str]) -> str:
        mark, label, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        path, _, anchor = target.partition("#")
        found = find_site_name(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if found is None:
            return label
        relative = posixpath.relpath(found, posixpath.dirname(name) or ".")
        return f"{mark}[{label}]({relative}{'#' + anchor if anchor else ''})"

    return _LINK.sub(adapt, markdown)


def find_site_name(path: str) -> str | None:
    """The name in the site of a file of the repository; None if it is not in the site."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    is_page = path.startswith("docs/") and path.endswith((".md", ".png", ".svg", ".jpg"))
    return path.removeprefix("docs/") if is_page else None
