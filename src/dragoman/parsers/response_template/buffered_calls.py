"""Parses tool calls in a complete region: its value, transformed, and cast by the tool's schema. Knows no stream."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ...core.message import CustomTool, Tool
from ..json_values import Json, coerce, decode, encode, find_schema_types
from .content import fill_transform, parse_content
from .template import TemplateField


class ParsedCall(Struct, frozen=True):
    """A parsed call. arguments: JSON text, or a custom tool's input."""

    name: str
    arguments: str
    is_custom: bool


def parse_calls(
    field: TemplateField, body: str, captures: Mapping[str, str], tools: Mapping[str, Tool]
) -> list[ParsedCall]:
    """The calls of declared tools in a region. Raises ValueError if it is invalid or calls none of them."""
    value = parse_content(field.content, body)
    scope: dict[str, Json] = dict(captures)
    if field.transform_each:
        value = [fill_transform(field.transform, {**scope, **_require_object(item)}) for item in _require_list(value)]
    elif field.transform is not None:
        value = fill_transform(field.transform, {**scope, "content": value})
    parsed = [_parse_call(item, tools) for item in (value if isinstance(value, list) else [value])]
    calls = [call for call in parsed if call is not None]
    # Text that calls nothing declared is shown to the user rather than lost: the caller releases it unchanged.
    if not calls:
        raise ValueError("no call of a declared tool")
    return calls


def _require_list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ValueError("'transform_each' requires a list")
    return value


def _require_object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError("this should be an object")
    return value


def _parse_call(value: Json, tools: Mapping[str, Tool]) -> ParsedCall | None:
    """Parse a call; None where the tool is not declared."""
    item = _require_object(value)
    # Both {"function": {"name": …}} and {"name": …}: the templates of transformers' chat format allow both.
    function = _require_object(item.get("function", item))
    name = function.get("name")
    if not isinstance(name, str):
        raise ValueError("a call without a name")
    tool = tools.get(name)
    if tool is None:
        return None
    arguments = function.get("arguments")
    if isinstance(tool, CustomTool):
        return ParsedCall(name, _encode_input(arguments), is_custom=True)
    if isinstance(arguments, dict) and tool.parameters is not None:
        arguments = _cast_arguments(arguments, tool.parameters)
    return ParsedCall(name, _encode_arguments({} if arguments is None else arguments), is_custom=False)


def _encode_arguments(arguments: Json) -> str:
    return arguments if isinstance(arguments, str) else encode(arguments)


def _encode_input(arguments: Json) -> str:
    if isinstance(arguments, dict) and isinstance(arguments.get("input"), str):
        arguments = arguments["input"]
    return _encode_arguments(arguments)


def _cast_arguments(arguments: dict[str, Json], schema: str) -> dict[str, Json]:
    """Cast texts to the schema's types: in XML every value is text."""
    declared = decode(schema)
    properties = declared.get("properties") if isinstance(declared, dict) else None
    if not isinstance(properties, dict):
        return arguments
    return {key: _cast_value(value, find_schema_types(properties.get(key))) for key, value in arguments.items()}


def _cast_value(value: Json, types: tuple[str, ...]) -> Json:
    match value:
        case str() if types:
            return coerce(value, types)
        case list() if types and "array" not in types:  # A key that occurs several times.
            return [coerce(item, types) if isinstance(item, str) else item for item in value]
        case _:
            return value
