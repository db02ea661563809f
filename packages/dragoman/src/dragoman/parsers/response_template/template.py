"""Parses a response template from JSON and validates that every feature of it is
supported.

The format is transformers' `response_template`, version 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TypeVar

import msgspec
from msgspec import Struct

from ..json_text import Json, decode
from .pattern import (
    Node,
    UnsupportedPattern,
    build_alternation,
    can_be_empty,
    find_group_names,
    parse_pattern,
    uses_start_anchor,
)
from .pike_vm import Program, find_matches

# Content parsers, and transforms of the values that they parse. Every function raises
# ValueError for text that it cannot parse.


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


def parse_content(content: Content, text: str) -> Json:
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
            entries: dict[str, Json] = {}
            for line in text.split(content.line_sep):
                key, sep, raw = _strip_text(line, content.strip).partition(content.kv_sep)
                if sep:
                    raw = _strip_text(raw, content.strip)
                    entries[_strip_text(key, content.strip)] = (
                        raw if content.value is None else parse_content(content.value, raw)
                    )
            return entries


_SCALAR_PARSERS: Mapping[str, Callable[[str], Json]] = MappingProxyType(
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


def _parse_xml(content: XmlContent, text: str) -> Json:
    entries: dict[str, Json] = {}
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


# A dotted path in braces, such as `{content.name}`.
_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def parse_placeholder(placeholder: str) -> list[str] | None:
    """Parse `{a.b}` into the path [a, b]; return None for text without a placeholder.

    Raises ValueError for a placeholder that is mixed with other text.
    """
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
    """Replace the transform's placeholders with the values at their paths. Raises
    ValueError if a path is missing.
    """
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


class FieldKind(Enum):
    """The role of a message field."""

    TEXT = "text"
    REASONING = "reasoning"
    CALLS = "calls"


FIELD_KINDS = MappingProxyType(
    {
        "content": FieldKind.TEXT,
        "reasoning_content": FieldKind.REASONING,
        "reasoning": FieldKind.REASONING,
        "thinking": FieldKind.REASONING,
        "tool_calls": FieldKind.CALLS,
    }
)
"""The supported message fields, by the names that templates use."""


class KeyedCallLayout(Struct, frozen=True):
    """A call is one JSON object with these keys."""

    name_key: str
    argument_keys: tuple[str, ...]


class NamedByDelimiterLayout(Struct, frozen=True):
    """The opening delimiter captures the name; the JSON is the arguments."""

    name_group: str


class BufferedCallLayout(Struct, frozen=True):
    """The call can be parsed only when the region is closed."""


CallLayout = KeyedCallLayout | NamedByDelimiterLayout | BufferedCallLayout


class Delimiter(Struct, frozen=True):
    """A delimiter.

    node: the pattern that matches it.
    texts: its alternative texts; () if the template defines it by a pattern.
    """

    node: Node
    texts: tuple[str, ...] = ()


class TemplateField(Struct, frozen=True):
    """A field of the message.

    open: None for the implicit field, which takes the text outside all regions.
    close: None if only the end of the response closes the region.
    content: how the region's text is parsed.
    repeats: the field may have several regions.
    join: separator between the texts of several regions.
    transform: JSON value with placeholders, which converts the parsed content; None for
        none.
    transform_each: the transform is applied to each item of the content, which is a
        list.
    call_layout: how calls are written; used for fields of calls only.
    """

    name: str
    kind: FieldKind
    open: Delimiter | None
    close: Delimiter | None
    content: Content
    repeats: bool
    join: str
    transform: Json
    transform_each: bool
    call_layout: CallLayout


class ResponseTemplate(Struct, frozen=True):
    """A validated response template.

    anchor: its last match in the prompt ends where the parsed text begins.
    """

    fields: tuple[TemplateField, ...]
    anchor: Delimiter

    @property
    def implicit(self) -> TemplateField | None:
        """The field that takes the text outside all regions."""
        return next((field for field in self.fields if field.open is None), None)


# The JSON of a template, before validation.


class _TemplateSpec(Struct, forbid_unknown_fields=True):
    fields: dict[str, msgspec.Raw]
    version: int = 1
    defaults: dict[str, msgspec.Raw] = {}
    start_anchor: str | list[str] | None = None
    start_anchor_pattern: str | None = None


class _FieldSpec(Struct, forbid_unknown_fields=True):
    open: str | list[str] | None = None
    open_pattern: str | None = None
    close: str | list[str] | None = None
    close_pattern: str | None = None
    content: str = "text"
    content_args: msgspec.Raw = msgspec.Raw(b"{}")
    repeats: bool = False
    join: str | None = None
    optional: bool = True
    transform: msgspec.Raw = msgspec.Raw(b"null")
    transform_each: bool = False


class _StripArgs(Struct, forbid_unknown_fields=True):
    strip: bool = True


class _JsonArgs(Struct, forbid_unknown_fields=True):
    unquoted_keys: bool = False
    string_delims: tuple[tuple[str, str], ...] = ()
    allow_non_json: bool = False
    strip: bool = True


class _ValueParser(Struct, forbid_unknown_fields=True):
    name: str = "text"
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _XmlArgs(Struct, forbid_unknown_fields=True):
    tag_pattern: str
    value_parser: _ValueParser | None = None
    merge_duplicates: bool = False


class _LinesArgs(Struct, forbid_unknown_fields=True):
    line_sep: str = "\n"
    kv_sep: str = ":"
    value_parser: _ValueParser | None = None
    strip: bool = True


Spec = TypeVar("Spec")


def read_template(spec: bytes | str) -> ResponseTemplate:
    """Parse a template. Raises ValueError that names the invalid or unsupported field."""
    raw = _decode("response_template", spec, _TemplateSpec)
    if raw.version != 1:
        raise ValueError(f"response_template: version {raw.version} is not known")
    if not raw.fields:
        raise ValueError("response_template: there must be fields")
    anchor = _build_delimiter("start_anchor", raw.start_anchor, raw.start_anchor_pattern)
    if anchor is None:
        raise ValueError("response_template: start_anchor or start_anchor_pattern is missing")
    fields = tuple(_build_field(name, field) for name, field in raw.fields.items())
    implicit = [field.name for field in fields if field.open is None]
    # Text outside all regions belongs to the implicit field, so there can only be one.
    if len(implicit) > 1:
        raise ValueError(
            f"response_template: only one field may have no 'open', these have none: {implicit}"
        )
    return ResponseTemplate(fields, anchor)


def _decode(location: str, raw: bytes | str | msgspec.Raw, type: type[Spec]) -> Spec:
    try:
        return msgspec.json.decode(raw, type=type)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{location}: {error}") from error


def _build_field(name: str, raw: msgspec.Raw) -> TemplateField:
    location = f"response_template field {name!r}"
    if name not in FIELD_KINDS:
        raise ValueError(
            f"{location} is not a known message field; known fields are {', '.join(FIELD_KINDS)}"
        )
    spec = _decode(location, raw, _FieldSpec)
    opening = _build_delimiter(f"{location}, open", spec.open, spec.open_pattern)
    closing = _build_delimiter(f"{location}, close", spec.close, spec.close_pattern)
    if closing is not None and uses_start_anchor(closing.node):
        raise ValueError(f"{location}, close: ^ is not supported here")
    if spec.join is not None and not spec.repeats:
        raise ValueError(f"{location}: 'join' requires 'repeats'")
    kind = FIELD_KINDS[name]
    content = _read_content(location, spec.content, spec.content_args)
    transform = _read_transform(location, spec, opening, closing)
    if kind is FieldKind.CALLS and opening is None:
        raise ValueError(f"{location}: 'open' or 'open_pattern' is missing")
    # Text and reasoning stream, and a transform can only be applied to a whole region.
    if kind is not FieldKind.CALLS and not (isinstance(content, TextContent) and transform is None):
        raise ValueError(f"{location} must be plain text: content 'text' without a transform")
    call_layout = _infer_call_layout(
        content,
        transform,
        spec.transform_each,
        find_group_names(opening.node) if opening else frozenset(),
    )
    return TemplateField(
        name=name,
        kind=kind,
        open=opening,
        close=closing,
        content=content,
        repeats=spec.repeats,
        join=spec.join or "",
        transform=transform,
        transform_each=spec.transform_each,
        call_layout=call_layout,
    )


def _build_delimiter(
    location: str, texts: str | list[str] | None, pattern: str | None
) -> Delimiter | None:
    if texts is not None and pattern is not None:
        raise ValueError(f"{location}: give either a text or a pattern, not both")
    if texts is not None:
        options = (texts,) if isinstance(texts, str) else tuple(dict.fromkeys(texts))
        if not options or not all(options):
            raise ValueError(
                f"{location}: there must be at least one text, and no text may be empty"
            )
        return Delimiter(build_alternation(options), options)
    if pattern is None:
        return None
    node = _compile_pattern(location, lambda: parse_pattern(pattern))
    # An empty match would match at every position without consuming text.
    if can_be_empty(node):
        raise ValueError(
            f"{location}: the pattern {pattern!r} can match the empty string, which is not "
            f"supported"
        )
    return Delimiter(node)


Result = TypeVar("Result")


def _compile_pattern(location: str, build: Callable[[], Result]) -> Result:
    try:
        return build()
    except UnsupportedPattern as error:
        raise ValueError(f"{location}: {error}") from error


def _read_transform(
    location: str, spec: _FieldSpec, opening: Delimiter | None, closing: Delimiter | None
) -> Json:
    group_names = frozenset[str]().union(
        *(
            find_group_names(delimiter.node)
            for delimiter in (opening, closing)
            if delimiter is not None
        )
    )
    transform = decode(bytes(spec.transform).decode())
    if transform is None:
        if spec.transform_each:
            raise ValueError(f"{location}: 'transform_each' requires a 'transform'")
        if group_names:
            raise ValueError(
                f"{location}: the groups {sorted(group_names)} need a 'transform' that uses them"
            )
        return None
    try:
        check_transform(transform)
    except ValueError as error:
        raise ValueError(f"{location}, transform: {error}") from error
    return transform


def _read_content(location: str, name: str, args: msgspec.Raw) -> Content:
    location = f"{location}, content_args"
    match name:
        case "text":
            return TextContent(_decode(location, args, _StripArgs).strip)
        case "int" | "float" | "bool":
            return ScalarContent(name, _decode(location, args, _StripArgs).strip)
        case "json":
            options = _decode(location, args, _JsonArgs)
            if not all(delimiter for pair in options.string_delims for delimiter in pair):
                raise ValueError(f"{location}: a string delimiter may not be empty")
            return JsonContent(
                options.unquoted_keys, options.string_delims, options.allow_non_json, options.strip
            )
        case "xml-inline":
            xml = _decode(location, args, _XmlArgs)
            node = _compile_pattern(location, lambda: parse_pattern(xml.tag_pattern))
            if not find_group_names(node) >= {"key", "value"} or can_be_empty(node):
                problem = (
                    "tag_pattern needs the groups 'key' and 'value', and may not match nothing"
                )
                raise ValueError(f"{location}: {problem}")
            program = _compile_pattern(location, lambda: Program([node]))
            return XmlContent(
                program, _read_value_content(location, xml.value_parser), xml.merge_duplicates
            )
        case "kv-lines":
            lines = _decode(location, args, _LinesArgs)
            if not lines.line_sep or not lines.kv_sep:
                raise ValueError(f"{location}: a separator may not be empty")
            return LinesContent(
                lines.line_sep,
                lines.kv_sep,
                _read_value_content(location, lines.value_parser),
                lines.strip,
            )
        case _:
            raise ValueError(f"{location}: there is no content parser {name!r}")


def _read_value_content(location: str, parser: _ValueParser | None) -> Content | None:
    return (
        None
        if parser is None
        else _read_content(f"{location}, value_parser", parser.name, parser.args)
    )


def _infer_call_layout(
    content: Content, transform: Json, is_per_item: bool, captures: frozenset[str]
) -> CallLayout:
    """Infer the layout of calls. Calls stream only if they are plain JSON and the
    transform names the keys.

    Other calls are buffered until their region closes.
    """
    if (
        not (isinstance(content, JsonContent) and content.is_plain)
        or is_per_item
        or not isinstance(transform, dict)
    ):
        return BufferedCallLayout()
    match transform.get("function", transform):
        case "{content}":
            return KeyedCallLayout("name", ("arguments", "parameters"))
        case {"name": str() as name, "arguments": str() as arguments}:
            match parse_placeholder(name), parse_placeholder(arguments):
                case [capture], ["content"] if capture in captures:
                    return NamedByDelimiterLayout(capture)
                case ["content", name_key], ["content", arguments_key]:
                    return KeyedCallLayout(name_key, (arguments_key,))
                case _:
                    return BufferedCallLayout()
        case _:
            return BufferedCallLayout()
