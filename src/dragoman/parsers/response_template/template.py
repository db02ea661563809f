"""A response template as it is read from JSON: what may be in it, and what of it can be carried out.

The format is transformers' `response_template`, version 1. Knows no stream.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import MappingProxyType
from typing import TypeVar

import msgspec
from msgspec import Struct

from ..values import Json, decode
from .content import (
    Content,
    JsonContent,
    LinesContent,
    ScalarContent,
    TextContent,
    XmlContent,
    check_transform,
    path_of,
)
from .pattern import Node, Unsupported, can_be_empty, either, names, parse, uses_begin
from .search import Program


class Kind(Enum):
    """What a field of the message is to us."""

    TEXT = "text"
    REASONING = "reasoning"
    CALLS = "calls"


KINDS = MappingProxyType(
    {
        "content": Kind.TEXT,
        "reasoning_content": Kind.REASONING,
        "reasoning": Kind.REASONING,
        "thinking": Kind.REASONING,
        "tool_calls": Kind.CALLS,
    }
)
"""The fields of a message that can be carried, whatever models call them."""


class Keyed(Struct, frozen=True):
    """A call is one JSON object with these keys."""

    name: str
    arguments: tuple[str, ...]


class Headed(Struct, frozen=True):
    """The name is captured by the opening delimiter; the JSON is the arguments."""

    capture: str


class Whole(Struct, frozen=True):
    """Nothing is known before the region is closed."""


Shape = Keyed | Headed | Whole


class Delimiter(Struct, frozen=True):
    """texts: where it is one of fixed texts."""

    node: Node
    texts: tuple[str, ...] = ()


class Field(Struct, frozen=True):
    """open: None for the field that takes what no other does. close: None if only the end of the answer closes it."""

    name: str
    kind: Kind
    open: Delimiter | None
    close: Delimiter | None
    content: Content
    repeats: bool
    join: str
    transform: Json
    transform_each: bool
    shape: Shape


class Template(Struct, frozen=True):
    fields: tuple[Field, ...]
    anchor: Delimiter

    @property
    def implicit(self) -> Field | None:
        return next((field for field in self.fields if field.open is None), None)


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


class _Strip(Struct, forbid_unknown_fields=True):
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


def read_template(spec: bytes | str) -> Template:
    """Raises ValueError that names the field that cannot be read or carried out."""
    raw = _decode("response_template", spec, _TemplateSpec)
    if raw.version != 1:
        raise ValueError(f"response_template: version {raw.version} is not known")
    if not raw.fields:
        raise ValueError("response_template: there must be fields")
    anchor = _delimiter("start_anchor", raw.start_anchor, raw.start_anchor_pattern)
    if anchor is None:
        raise ValueError("response_template: start_anchor or start_anchor_pattern is missing")
    fields = tuple(_field(name, field) for name, field in raw.fields.items())
    implicit = [field.name for field in fields if field.open is None]
    if len(implicit) > 1:
        raise ValueError(f"response_template: only one field may have no 'open', these have none: {implicit}")
    return Template(fields, anchor)


def _decode(where: str, raw: bytes | str | msgspec.Raw, type: type[Spec]) -> Spec:
    try:
        return msgspec.json.decode(raw, type=type)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{where}: {error}") from error


def _field(name: str, raw: msgspec.Raw) -> Field:
    where = f"response_template field {name!r}"
    if name not in KINDS:
        raise ValueError(f"{where} is not a known message field; known fields are {', '.join(KINDS)}")
    spec = _decode(where, raw, _FieldSpec)
    opening = _delimiter(f"{where}, open", spec.open, spec.open_pattern)
    closing = _delimiter(f"{where}, close", spec.close, spec.close_pattern)
    if closing is not None and uses_begin(closing.node):
        raise ValueError(f"{where}, close: ^ is not supported here")
    if spec.join is not None and not spec.repeats:
        raise ValueError(f"{where}: 'join' requires 'repeats'")
    kind = KINDS[name]
    content = _content(where, spec.content, spec.content_args)
    transform = _transform(where, spec, opening, closing)
    if kind is Kind.CALLS and opening is None:
        raise ValueError(f"{where}: 'open' or 'open_pattern' is missing")
    if kind is not Kind.CALLS and not (isinstance(content, TextContent) and transform is None):
        raise ValueError(f"{where} must be plain text: content 'text' without a transform")
    shape = _shape(content, transform, spec.transform_each, names(opening.node) if opening else frozenset())
    return Field(
        name=name,
        kind=kind,
        open=opening,
        close=closing,
        content=content,
        repeats=spec.repeats,
        join=spec.join or "",
        transform=transform,
        transform_each=spec.transform_each,
        shape=shape,
    )


def _delimiter(where: str, texts: str | list[str] | None, pattern: str | None) -> Delimiter | None:
    if texts is not None and pattern is not None:
        raise ValueError(f"{where}: give either a text or a pattern, not both")
    if texts is not None:
        options = (texts,) if isinstance(texts, str) else tuple(dict.fromkeys(texts))
        if not options or not all(options):
            raise ValueError(f"{where}: there must be at least one text, and no text may be empty")
        return Delimiter(either(options), options)
    if pattern is None:
        return None
    node = _carried_out(where, lambda: parse(pattern))
    if can_be_empty(node):
        raise ValueError(f"{where}: the pattern {pattern!r} can match the empty string, which is not supported")
    return Delimiter(node)


Made = TypeVar("Made")


def _carried_out(where: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except Unsupported as error:
        raise ValueError(f"{where}: {error}") from error


def _transform(where: str, spec: _FieldSpec, opening: Delimiter | None, closing: Delimiter | None) -> Json:
    captured = frozenset[str]().union(*(names(one.node) for one in (opening, closing) if one is not None))
    transform = decode(bytes(spec.transform).decode())
    if transform is None:
        if spec.transform_each:
            raise ValueError(f"{where}: 'transform_each' requires a 'transform'")
        if captured:
            raise ValueError(f"{where}: the groups {sorted(captured)} need a 'transform' that uses them")
        return None
    try:
        check_transform(transform)
    except ValueError as error:
        raise ValueError(f"{where}, transform: {error}") from error
    return transform


def _content(where: str, name: str, args: msgspec.Raw) -> Content:
    where = f"{where}, content_args"
    match name:
        case "text":
            return TextContent(_decode(where, args, _Strip).strip)
        case "int" | "float" | "bool":
            return ScalarContent(name, _decode(where, args, _Strip).strip)
        case "json":
            return _json_content(where, _decode(where, args, _JsonArgs))
        case "xml-inline":
            return _xml_content(where, _decode(where, args, _XmlArgs))
        case "kv-lines":
            lines = _decode(where, args, _LinesArgs)
            if not lines.line_sep or not lines.kv_sep:
                raise ValueError(f"{where}: a separator may not be empty")
            return LinesContent(lines.line_sep, lines.kv_sep, _value(where, lines.value_parser), lines.strip)
        case _:
            raise ValueError(f"{where}: there is no content parser {name!r}")


def _json_content(where: str, args: _JsonArgs) -> Content:
    if not all(mark for pair in args.string_delims for mark in pair):
        raise ValueError(f"{where}: a string delimiter may not be empty")
    return JsonContent(args.unquoted_keys, args.string_delims, args.allow_non_json, args.strip)


def _xml_content(where: str, args: _XmlArgs) -> Content:
    node = _carried_out(where, lambda: parse(args.tag_pattern))
    if not names(node) >= {"key", "value"} or can_be_empty(node):
        raise ValueError(f"{where}: tag_pattern needs the groups 'key' and 'value', and may not match nothing")
    program = _carried_out(where, lambda: Program([node]))
    return XmlContent(program, _value(where, args.value_parser), args.merge_duplicates)


def _value(where: str, parser: _ValueParser | None) -> Content | None:
    return None if parser is None else _content(f"{where}, value_parser", parser.name, parser.args)


def _shape(content: Content, transform: Json, each: bool, captures: frozenset[str]) -> Shape:
    """How early a call can be told: only plain JSON under a transform that says where things are streams."""
    if not (isinstance(content, JsonContent) and content.is_plain) or each or not isinstance(transform, dict):
        return Whole()
    match transform.get("function", transform):
        case "{content}":
            return Keyed("name", ("arguments", "parameters"))
        case {"name": str() as name, "arguments": str() as arguments}:
            match path_of(name), path_of(arguments):
                case [capture], ["content"] if capture in captures:
                    return Headed(capture)
                case ["content", name_key], ["content", arguments_key]:
                    return Keyed(name_key, (arguments_key,))
                case _:
                    return Whole()
        case _:
            return Whole()
