"""Links in the output of search tools."""

from __future__ import annotations

import pytest

from dragoman.dialects.search_links import MAX_LINKS, find_links, locate_links

A = "https://a.example/x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{{"results":[{{"title":"A","url":"{A}"}},{{"link":"ftp://b"}}]}}', [(A, "A")]),
        (f"Title: A b\nURL: {A}.\n\nhttps://c.example", [(A, "A b"), ("https://c.example",) * 2]),
        (f"See [A]({A}), {A}", [(A, "A")]),
        ("nothing", []),
        ("[" * 100_000, []),
    ],
)
def test_find_links_in_json_and_text(text: str, expected: list[tuple[str, str]]) -> None:
    assert [(link.url, link.title) for link in find_links(text)] == expected


def test_find_links_stops_at_limit() -> None:
    text = "\n".join(f"{A}{i}" for i in range(2 * MAX_LINKS))
    assert len(find_links(text)) == MAX_LINKS


def test_locate_links_without_trailing_punctuation() -> None:
    assert locate_links(f"See {A}. Or ({A})") == [(4, A), (4 + len(A) + 6, A)]
