"""Citations of the files that a search has found."""

from __future__ import annotations

import json

import pytest

from dragoman.dialects.responses.citations import CitedFile, Sources


def cite(text: str, *names: str) -> list[tuple[str, int]]:
    """Return the names and indexes of the citations of files with these names."""
    sources = Sources()
    sources.add_files(CitedFile(name, name) for name in names)
    citations = map(json.loads, sources.render_citations(text))
    return [(citation["filename"], citation["index"]) for citation in citations]


@pytest.mark.parametrize("text", ["bern.md", "(bern.md).", "x/bern.md\n", "見てbern.mdによると"])
def test_name_among_other_text_is_cited(text: str) -> None:
    assert cite(text, "bern.md") == [("bern.md", text.index("bern.md") + 7)]


def test_name_after_letters_without_spaces_is_cited() -> None:
    assert cite("根据年度报告.md", "年度报告.md") == [("年度报告.md", 9)]


@pytest.mark.parametrize("text", ["my-bern.md", "bern.md.bak", "ébern.md", "bern.mdx", "1bern.md"])
def test_part_of_other_name_is_not_cited(text: str) -> None:
    assert cite(text, "bern.md") == []


def test_name_within_longer_name_is_cited_only_as_that() -> None:
    assert cite("前章.md, 章.md", "章.md", "前章.md") == [("前章.md", 5), ("章.md", 11)]
