"""Parses the content of a region.

Every function raises ValueError for text that it cannot parse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec import Struct

from ...core.json_types import JsonObject, JsonValue
from ..json_codec import decode
from ..stream_regex import Program, find_matches


class TextContent(Struct, frozen=True):
    """Plain text.

    strip: white space around the text is stripped.
    """

    strip: bool = True


class ScalarContent(Struct, frozen=True):
    """One number or boolean.

    kind: int, float or bool.
    """

    kind: str
    strip: bool = True


class JsonContent(Struct, frozen=True):
    """JSON, or a relaxed form of it.

    unquoted_keys: keys may be bare words.
    string_delims: additional delimiters of strings, pairs of (open, close).
    allow_non_json: text that is not valid JSON is a string.
    """

    unquoted_keys: bool = False
    string_delims: tuple[tuple[str, str], ...] = ()
    allow_non_json: bool = False
    strip: bool = True

    @property
    def is_plain(self) -> bool:
        return not (self.unquoted_keys or self.string_delims or self.allow_non_json)


class XmlContent(Struct, frozen=True):
    """XML-like entries.

    tag: pattern of one entry, with the groups key and value.
    value: content of a value; None means plain text.
    merge_duplicates: the values of a repeated key become a list; otherwise the last one
        wins.
    """

    tag: Program
    value: Content | None = None
    merge_duplicates: bool = False


class LinesContent(Struct, frozen=True):
    """Entries of a key and a value, one per line; lines without `kv_sep` are ignored.

    value: content of a value; None means plain text.
    """

    line_sep: str = "\n"
    kv_sep: str = ":"
    value: Content | None = None
    strip: bool = True


Content = TextContent | ScalarContent | JsonContent | XmlContent | LinesContent


def parse_content(content: Content, text: str) -> JsonValue:
    """Parse a region's text. Raises ValueError if it is invalid."""
    match content:
        case TextContent(strip):
            return _strip_text(text, strip)
        case ScalarContent(kind, strip):
            return _SCALAR_PARSERS[kind](_strip_text(text, strip))
        case JsonContent():
            try:
                return decode(_to_standard_json(content, text))
            except ValueError:
                if content.allow_non_json:
                    return _strip_text(text, content.strip)
                raise
        case XmlContent():
            return _parse_xml(content, text)
        case LinesContent():
            entries: JsonObject = {}
            for line in text.split(content.line_sep):
                key, sep, raw = _strip_text(line, content.strip).partition(content.kv_sep)
                if sep:
                    raw = _strip_text(raw, content.strip)
                    entries[_strip_text(key, content.strip)] = (
                        raw if content.value is None else parse_content(content.value, raw)
                    )
            return entries


_SCALAR_PARSERS: Mapping[str, Callable[[str], JsonValue]] = MappingProxyType(
    {"int": int, "float": float, "bool": lambda text: text.lower() in ("true", "1")}
)


def _strip_text(text: str, strip: bool) -> str:
    return text.strip() if strip else text


def _to_standard_json(content: JsonContent, text: str) -> str:
    """Rewrite the text as standard JSON."""
    parts: list[str] = []
    pos = 0
    while pos < len(text):
        # The position and the delimiters of the next string with custom delimiters; ""
        # if there is none.
        candidates = [
            (text.find(opening, pos), opening, closing)
            for opening, closing in content.string_delims
        ]
        begin, open_delimiter, close_delimiter = min(
            (candidate for candidate in candidates if candidate[0] >= 0),
            default=(len(text), "", ""),
        )
        end = text.find(close_delimiter, begin + len(open_delimiter)) if open_delimiter else -1
        if end < 0:
            begin = len(text)
        outside = text[pos:begin]
        parts.append(_quote_keys(outside) if content.unquoted_keys else outside)
        if end >= 0:
            parts.append(json.dumps(text[begin + len(open_delimiter) : end]))
            begin = end + len(close_delimiter)
        pos = begin
    return "".join(parts)


# A JSON string, possibly unterminated, or a bare word.
_KEY_OR_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?|\w+', re.DOTALL)


def _quote_keys(text: str) -> str:
    """Quote bare words before a colon, outside strings."""
    parts: list[str] = []
    pos = 0
    while (match := _KEY_OR_STRING.search(text, pos)) is not None:
        before = text[pos : match.start()]
        word = match.group()
        end = match.end()
        # Only after `{` or `,`: a word before a colon elsewhere belongs to a value.
        is_key = (
            word[0] != '"' and text[end : end + 1] == ":" and before.rstrip()[-1:] in ("{", ",")
        )
        parts.append(before + (f'"{word}"' if is_key else word))
        pos = end
    return "".join([*parts, text[pos:]])


def _parse_xml(content: XmlContent, text: str) -> JsonValue:
    entries: JsonObject = {}
    merged: set[str] = set()
    for match in find_matches(content.tag, text):
        spans = {name: text[start:end] for name, start, end in match.captures}
        key = spans.get("key")
        raw = spans.get("value", "")
        if key is None:
            raise ValueError("a tag without a key")
        value = raw if content.value is None else parse_content(content.value, raw)
        if key in entries and content.merge_duplicates:
            previous = entries[key]
            # `merged` distinguishes a list that was built here from a value that is
            # itself a list.
            entries[key] = (
                [*previous, value]
                if isinstance(previous, list) and key in merged
                else [previous, value]
            )
            merged.add(key)
        else:
            entries[key] = value
    return entries
