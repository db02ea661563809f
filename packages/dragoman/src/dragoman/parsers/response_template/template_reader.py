"""Parses a response template from JSON, validating that every feature of it is
supported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from ...core.json_types import JsonValue
from ..json_codec import decode
from ..stream_regex import (
    Program,
    UnsupportedPattern,
    build_alternation,
    can_be_empty,
    find_group_names,
    parse_pattern,
    uses_start_anchor,
)
from .content import Content, JsonContent, LinesContent, ScalarContent, TextContent, XmlContent
from .template import (
    FIELD_KINDS,
    BufferedCallLayout,
    CallLayout,
    Delimiter,
    FieldKind,
    KeyedCallLayout,
    NamedByDelimiterLayout,
    ResponseTemplate,
    TemplateField,
    check_transform,
    parse_placeholder,
)


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
) -> JsonValue:
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
    content: Content, transform: JsonValue, is_per_item: bool, captures: frozenset[str]
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
