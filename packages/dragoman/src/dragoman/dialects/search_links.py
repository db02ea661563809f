"""Finds the links in the output of a search tool, which is JSON or text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

import msgspec
from msgspec import Struct

MAX_LINKS = 100
_MAX_TITLE = 500
_MAX_EXCERPT = 150
"""That of the `cited_text` of Anthropic's API."""
_URL = re.compile(r"https?://[^\s<>\"'`\])}|\\^]+")
_MARKDOWN = re.compile(r"\[([^\[\]\n]{1,500})\]\((https?://[^\s()<>]+)\)")
_TITLE = re.compile(r"^\W*title\W*:\s*(.+?)\s*$", re.IGNORECASE)
_TRAILING = ".,;:!?*_"
"""Punctuation that may follow a URL in text."""
_URL_NAMES = ("url", "link", "href", "uri")
_TITLE_NAMES = ("title", "name")
_EXCERPT_NAMES = ("content", "snippet", "description", "text")


class Link(Struct, frozen=True):
    """A link.

    title: the URL itself if the output names none.
    excerpt: the text that the output has for it; empty if it is not JSON.
    """

    url: str
    title: str
    excerpt: str = ""


def find_links(text: str) -> tuple[Link, ...]:
    """Return the links in their order, each URL once."""
    try:
        found = _walk(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError):
        found = _scan(text)
    links: dict[str, Link] = {}
    for link in found:
        links.setdefault(link.url, link)
        if len(links) == MAX_LINKS:
            break
    return tuple(links.values())


def locate_links(text: str) -> list[tuple[int, str]]:
    """Return the URLs in an answer's text with their positions."""
    return [(match.start(), match[0].rstrip(_TRAILING)) for match in _URL.finditer(text)]


def _walk(root: object) -> Iterator[Link]:
    """Yield the links of a JSON value, without recursion: a tool may nest it deeply."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(reversed(cast("list[object]", value)))
        elif isinstance(value, dict):
            fields = cast("dict[str, object]", value)
            url = _get_text(fields, _URL_NAMES)
            if _URL.fullmatch(url):
                title = _get_text(fields, _TITLE_NAMES)[:_MAX_TITLE] or url
                yield Link(url, title, _get_text(fields, _EXCERPT_NAMES)[:_MAX_EXCERPT])
            waiting.extend(reversed(fields.values()))


def _get_text(fields: dict[str, object], names: tuple[str, ...]) -> str:
    return next((value for name in names if isinstance(value := fields.get(name), str)), "")


def _scan(text: str) -> Iterator[Link]:
    title = ""
    for line in text.splitlines():
        if (named := _TITLE.match(line)) is not None:
            title = named[1][:_MAX_TITLE]
        titles = {url.rstrip(_TRAILING): name for name, url in _MARKDOWN.findall(line)}
        for match in _URL.findall(line):
            url = match.rstrip(_TRAILING)
            yield Link(url, titles.get(url) or title or url)
            title = ""
