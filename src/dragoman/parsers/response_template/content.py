"""What stands in a region, as a value: the content parsers of the format, and what becomes of their values.

Every function here raises ValueError for text that it cannot read. Knows no regions and no events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..values import Json, decode
from .search import Program, find_all


class TextContent(Struct, frozen=True):
    strip: bool = True


class ScalarContent(Struct, frozen=True):
    """kind: int, float or bool."""

    kind: str
    strip: bool = True


class JsonContent(Struct, frozen=True):
    """unquoted_keys: keys may be bare words. string_delims: other marks around strings, (open, close).
    allow_non_json: text that is not valid JSON is a string."""

    unquoted_keys: bool = False
    string_delims: tuple[tuple[str, str], ...] = ()
    allow_non_json: bool = False
    strip: bool = True

    @property
    def is_plain(self) -> bool:
        return not (self.unquoted_keys or self.string_delims or self.allow_non_json)


class XmlContent(Struct, frozen=True):
    """tag: what one entry looks like, with the groups key and value. value: what a value is; None is text as it is."""

    tag: Program
    value: Content | None = None
    merge_duplicates: bool = False


class LinesContent(Struct, frozen=True):
    line_sep: str = "\n"
    kv_sep: str = ":"
    value: Content | None = None
    strip: bool = True


Content = TextContent | ScalarContent | JsonContent | XmlContent | LinesContent


def read(content: Content, text: str) -> Json:
    """The value of a region's text."""
    match content:
        case TextContent(strip):
            return _stripped(text, strip)
        case ScalarContent(kind, strip):
            return _scalar(kind, _stripped(text, strip))
        case JsonContent():
            return _json(content, text)
        case XmlContent():
            return _xml(content, text)
        case LinesContent():
            return _lines(content, text)


def _scalar(kind: str, word: str) -> Json:
    if kind == "bool":
        return word.lower() in ("true", "1")
    return int(word) if kind == "int" else float(word)


def _stripped(text: str, strip: bool) -> str:
    return text.strip() if strip else text


def _json(content: JsonContent, text: str) -> Json:
    try:
        return decode(_standard(content, text))
    except ValueError:
        if content.allow_non_json:
            return _stripped(text, content.strip)
        raise


def _standard(content: JsonContent, text: str) -> str:
    """The same in standard JSON."""
    out: list[str] = []
    at = 0
    while at < len(text):
        begin, opening, closing = _next_string(content.string_delims, text, at)
        end = text.find(closing, begin + len(opening)) if opening else -1
        if end < 0:
            begin = len(text)
        outside = text[at:begin]
        out.append(_quote_keys(outside) if content.unquoted_keys else outside)
        if end >= 0:
            out.append(json.dumps(text[begin + len(opening) : end]))
            begin = end + len(closing)
        at = begin
    return "".join(out)


def _next_string(delims: Sequence[tuple[str, str]], text: str, at: int) -> tuple[int, str, str]:
    """Where the next string in marks of its own begins; "" for the marks if none does."""
    found = [(text.find(opening, at), opening, closing) for opening, closing in delims]
    return min((one for one in found if one[0] >= 0), default=(len(text), "", ""))


_KEY_OR_STRING = re.compile(r'"|\w+')
_IN_STRING = re.compile(r'["\\]')


def _quote_keys(text: str) -> str:
    """Bare words before a colon become strings; what is in strings already stays."""
    out: list[str] = []
    at = 0
    while (found := _KEY_OR_STRING.search(text, at)) is not None:
        end = found.end()
        if found.group() == '"':
            end = _string_end(text, end)
            out.append(text[at:end])
        else:
            word = found.group()
            is_key = text[end : end + 1] == ":" and text[at : found.start()].rstrip()[-1:] in ("{", ",")
            out.append(text[at : found.start()] + (f'"{word}"' if is_key else word))
        at = end
    return "".join([*out, text[at:]])


def _string_end(text: str, at: int) -> int:
    while (found := _IN_STRING.search(text, at)) is not None:
        if found.group() == '"':
            return found.end()
        at = found.end() + 1
    return len(text)


def _xml(content: XmlContent, text: str) -> Json:
    out: dict[str, Json] = {}
    merged: set[str] = set()
    for found in find_all(content.tag, text):
        spans = {name: text[start:end] for name, start, end in found.captures}
        key, raw = spans.get("key"), spans.get("value", "")
        if key is None:
            raise ValueError("a tag without a key")
        value = raw if content.value is None else read(content.value, raw)
        if key in out and content.merge_duplicates:
            before = out[key]
            out[key] = [*before, value] if isinstance(before, list) and key in merged else [before, value]
            merged.add(key)
        else:
            out[key] = value
    return out


def _lines(content: LinesContent, text: str) -> Json:
    out: dict[str, Json] = {}
    for line in text.split(content.line_sep):
        key, sep, raw = _stripped(line, content.strip).partition(content.kv_sep)
        if sep:
            raw = _stripped(raw, content.strip)
            out[_stripped(key, content.strip)] = raw if content.value is None else read(content.value, raw)
    return out


_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def path_of(placeholder: str) -> list[str] | None:
    """What `{a.b}` stands for; None for any other text. Raises ValueError where both are mixed."""
    whole = _PLACEHOLDER.fullmatch(placeholder)
    if whole is None and _PLACEHOLDER.search(placeholder):
        raise ValueError(f"{placeholder!r} mixes a placeholder with other text")
    return None if whole is None else whole[1].split(".")


def check_transform(transform: Json) -> None:
    """Raises ValueError for a transform that cannot be filled in."""
    match transform:
        case dict():
            for inner in transform.values():
                check_transform(inner)
        case list():
            for inner in transform:
                check_transform(inner)
        case str():
            path_of(transform)
        case _:
            pass


def fill(transform: Json, scope: Mapping[str, Json]) -> Json:
    """The transform with its placeholders replaced by the values that they name."""
    match transform:
        case dict():
            return {key: fill(inner, scope) for key, inner in transform.items()}
        case list():
            return [fill(inner, scope) for inner in transform]
        case str() if (path := path_of(transform)) is not None:
            return _look_up(path, scope)
        case _:
            return transform


def _look_up(path: Sequence[str], scope: Mapping[str, Json]) -> Json:
    value: Json = dict(scope)
    for key in path:
        if not isinstance(value, dict) or key not in value:
            raise ValueError(f"there is no {'.'.join(path)}")
        value = value[key]
    return value
