"""Content parsers of response templates, and transforms of their values.

Every function raises ValueError for text that it cannot parse. Knows no regions and no events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from msgspec import Struct

from ..json_values import Json, decode
from .pike_vm import Program, find_matches


class TextContent(Struct, frozen=True):
    strip: bool = True


class ScalarContent(Struct, frozen=True):
    """A scalar. kind: int, float or bool."""

    kind: str
    strip: bool = True


class JsonContent(Struct, frozen=True):
    """JSON, or a relaxed form of it.

    unquoted_keys: keys may be bare words.
    string_delims: other delimiters of strings, (open, close).
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
    value: content of a value; None is plain text.
    """

    tag: Program
    value: Content | None = None
    merge_duplicates: bool = False


class LinesContent(Struct, frozen=True):
    line_sep: str = "\n"
    kv_sep: str = ":"
    value: Content | None = None
    strip: bool = True


Content = TextContent | ScalarContent | JsonContent | XmlContent | LinesContent


def parse_content(content: Content, text: str) -> Json:
    """Parse a region's text."""
    match content:
        case TextContent(strip):
            return _strip_text(text, strip)
        case ScalarContent(kind, strip):
            return _parse_scalar(kind, _strip_text(text, strip))
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
            entries: dict[str, Json] = {}
            for line in text.split(content.line_sep):
                key, sep, raw = _strip_text(line, content.strip).partition(content.kv_sep)
                if sep:
                    raw = _strip_text(raw, content.strip)
                    entries[_strip_text(key, content.strip)] = (
                        raw if content.value is None else parse_content(content.value, raw)
                    )
            return entries


def _parse_scalar(kind: str, text: str) -> Json:
    if kind == "bool":
        return text.lower() in ("true", "1")
    return int(text) if kind == "int" else float(text)


def _strip_text(text: str, strip: bool) -> str:
    return text.strip() if strip else text


def _to_standard_json(content: JsonContent, text: str) -> str:
    """Rewrite the text as standard JSON."""
    parts: list[str] = []
    pos = 0
    while pos < len(text):
        # The position of the next string with custom delimiters, and these; "" without one.
        candidates = [(text.find(opening, pos), opening, closing) for opening, closing in content.string_delims]
        begin, open_delimiter, close_delimiter = min(
            (candidate for candidate in candidates if candidate[0] >= 0), default=(len(text), "", "")
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


_KEY_OR_STRING = re.compile(r'"|\w+')
_STRING_SPECIALS = re.compile(r'["\\]')


def _quote_keys(text: str) -> str:
    """Quote bare words before a colon, outside strings."""
    parts: list[str] = []
    pos = 0
    while (match := _KEY_OR_STRING.search(text, pos)) is not None:
        end = match.end()
        if match.group() == '"':
            end = _find_string_end(text, end)
            parts.append(text[pos:end])
        else:
            word = match.group()
            # Only after `{` or `,`: a word before a colon elsewhere belongs to a value.
            is_key = text[end : end + 1] == ":" and text[pos : match.start()].rstrip()[-1:] in ("{", ",")
            parts.append(text[pos : match.start()] + (f'"{word}"' if is_key else word))
        pos = end
    return "".join([*parts, text[pos:]])


def _find_string_end(text: str, pos: int) -> int:
    while (match := _STRING_SPECIALS.search(text, pos)) is not None:
        if match.group() == '"':
            return match.end()
        pos = match.end() + 1
    return len(text)


def _parse_xml(content: XmlContent, text: str) -> Json:
    entries: dict[str, Json] = {}
    merged: set[str] = set()
    for match in find_matches(content.tag, text):
        spans = {name: text[start:end] for name, start, end in match.captures}
        key, raw = spans.get("key"), spans.get("value", "")
        if key is None:
            raise ValueError("a tag without a key")
        value = raw if content.value is None else parse_content(content.value, raw)
        if key in entries and content.merge_duplicates:
            previous = entries[key]
            # `merged` tells a list that was built here from one that is the entry's own value.
            entries[key] = [*previous, value] if isinstance(previous, list) and key in merged else [previous, value]
            merged.add(key)
        else:
            entries[key] = value
    return entries


_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def parse_placeholder(placeholder: str) -> list[str] | None:
    """The path in `{a.b}`; None for text without placeholder. Raises ValueError for a mix of both."""
    match = _PLACEHOLDER.fullmatch(placeholder)
    if match is None and _PLACEHOLDER.search(placeholder):
        raise ValueError(f"{placeholder!r} mixes a placeholder with other text")
    return None if match is None else match[1].split(".")


def check_transform(transform: Json) -> None:
    """Raise ValueError for an invalid transform."""
    match transform:
        case dict():
            for inner in transform.values():
                check_transform(inner)
        case list():
            for inner in transform:
                check_transform(inner)
        case str():
            parse_placeholder(transform)
        case _:
            pass


def fill_transform(transform: Json, scope: Mapping[str, Json]) -> Json:
    """Replace the transform's placeholders by the values at their paths."""
    match transform:
        case dict():
            return {key: fill_transform(inner, scope) for key, inner in transform.items()}
        case list():
            return [fill_transform(inner, scope) for inner in transform]
        case str() if (path := parse_placeholder(transform)) is not None:
            value: Json = dict(scope)
            for key in path:
                if not isinstance(value, dict) or key not in value:
                    raise ValueError(f"there is no {'.'.join(path)}")
                value = value[key]
            return value
        case _:
            return transform
