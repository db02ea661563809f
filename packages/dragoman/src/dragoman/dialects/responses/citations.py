"""The citations of what hosted tools have found, where an answer's text names it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

from msgspec import Struct

from ..json_encoding import encode_string
from ..search_links import Link, locate_links

MAX_FILES = 100
"""Maximum files of one response that its text can cite."""


class CitedFile(Struct, frozen=True):
    id: str
    name: str


class Sources:
    """What the calls of one response have found so far: links and files."""

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}
        self._files: dict[str, CitedFile] = {}

    def add_links(self, links: Iterable[Link]) -> None:
        self._titles |= {link.url: link.title for link in links}

    def add_files(self, files: Iterable[CitedFile]) -> None:
        for file in files:
            if len(self._files) < MAX_FILES:
                self._files.setdefault(file.name, file)

    def render_citations(self, text: str) -> list[bytes]:
        """Render a citation for each link and file that stands in the text, in order."""
        if not self._titles and not self._files:
            return []
        found = [*self._cite_links(text), *self._cite_files(text)]
        return [citation for _, citation in sorted(found)]

    def _cite_links(self, text: str) -> Iterator[tuple[int, bytes]]:
        for start, url in locate_links(text) if self._titles else ():
            if url in self._titles:
                yield (
                    start,
                    b'{"type":"url_citation","start_index":%d,"end_index":%d,"url":%s,"title":%s}'
                    % (
                        start,
                        start + len(url),
                        encode_string(url),
                        encode_string(self._titles[url]),
                    ),
                )

    def _cite_files(self, text: str) -> Iterator[tuple[int, bytes]]:
        # The characters of longer names, which are no mention of a shorter one.
        named = bytearray(len(text))
        # A regular expression of all names would try each of them at each position.
        for file in sorted(self._files.values(), key=lambda file: -len(file.name)):
            start = text.find(file.name)
            while start >= 0:
                end = start + len(file.name)
                is_part = _is_part_of_name(text[start - 1 : start], text[end : end + 2])
                if not is_part and named.find(1, start, end) < 0:
                    named[start:end] = b"\x01" * len(file.name)
                    yield (
                        start,
                        b'{"type":"file_citation","file_id":%s,"filename":%s,"index":%d}'
                        % (encode_string(file.id), encode_string(file.name), end),
                    )
                start = text.find(file.name, end)


def _is_part_of_name(before: str, after: str) -> bool:
    """Whether a match is only a part of another file's name. after: two characters."""
    return (
        _is_in_name(before) or _is_in_name(after[:1]) or (after[:1] == "." and after[1:].isalnum())
    )


def _is_in_name(character: str) -> bool:
    # Chinese and Japanese put no space between a name and the words around it.
    if character and unicodedata.category(character) == "Lo":
        return False
    return character.isalnum() or character in tuple("_-")
