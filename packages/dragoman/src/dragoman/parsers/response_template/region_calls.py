"""Parses the calls in the text of a complete region."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ...core.json_types import JsonObject, JsonValue
from ...core.message import CustomTool, Tool
from ..json_codec import encode
from ..text_conversion import coerce
from ..tool_parameters import read_parameters
from .content import JsonContent, parse_content
from .template import (
    TemplateField,
    fill_transform,
)


class ParsedCall(Struct, frozen=True):
    """A parsed call of a declared tool.

    arguments: JSON text, or a custom tool's input.
    """

    name: str
    arguments: str
    is_custom: bool


def parse_calls(
    field: TemplateField, body: str, captures: Mapping[str, str], tools: Mapping[str, Tool]
) -> list[ParsedCall]:
    """Parse the calls of declared tools in a region.

    body: the region's text.
    captures: the groups that its delimiters captured.

    Raises:
        ValueError: the text is invalid or contains no call of a declared tool.
    """
    value = parse_content(field.content, body)
    scope: JsonObject = dict(captures)
    if field.transform_each:
        if not isinstance(value, list):
            raise ValueError("'transform_each' requires a list")
        value = [
            fill_transform(field.transform, {**scope, **_require_object(item)}) for item in value
        ]
    elif field.transform is not None:
        value = fill_transform(field.transform, {**scope, "content": value})
    items = value if isinstance(value, list) else [value]
    has_types = isinstance(field.content, JsonContent)
    parsed = [_parse_call(item, tools, has_types=has_types) for item in items]
    calls = [call for call in parsed if call is not None]
    # The caller emits such text unchanged, so it is shown to the user instead of lost.
    if not calls:
        raise ValueError("no call of a declared tool")
    return calls


def _require_object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise ValueError("this should be an object")
    return value


def _parse_call(
    value: JsonValue, tools: Mapping[str, Tool], *, has_types: bool
) -> ParsedCall | None:
    """Parse a call; return None if its tool is not declared. Raises ValueError if it is
    invalid.

    has_types: the call was written in JSON, so a string that the schema allows is meant
        as a string.
    """
    item = _require_object(value)
    # Both {"function": {"name": …}} and {"name": …}: the templates of transformers'
    # chat format allow both.
    function = _require_object(item.get("function", item))
    name = function.get("name")
    if not isinstance(name, str):
        raise ValueError("a call without a name")
    tool = tools.get(name)
    if tool is None:
        return None
    arguments = function.get("arguments")
    if isinstance(tool, CustomTool):
        if isinstance(arguments, dict) and isinstance(arguments.get("input"), str):
            arguments = arguments["input"]
        return ParsedCall(name, _encode_arguments(arguments), is_custom=True)
    if isinstance(arguments, dict):
        parameters = read_parameters(tool)
        # Strings are cast to the schema's types, since in XML every value is a string.
        types = {key: parameters.find_types(key) for key in arguments}
        arguments = {
            key: value if has_types and "string" in types[key] else _cast_value(value, types[key])
            for key, value in arguments.items()
        }
    return ParsedCall(
        name, _encode_arguments({} if arguments is None else arguments), is_custom=False
    )


def _encode_arguments(arguments: JsonValue) -> str:
    return arguments if isinstance(arguments, str) else encode(arguments)


def _cast_value(value: JsonValue, types: tuple[str, ...]) -> JsonValue:
    match value:
        case str() if types:
            return coerce(value, types)
        case list() if (
            types and "array" not in types
        ):  # The values of a key that occurs several times.
            return [coerce(item, types) if isinstance(item, str) else item for item in value]
        case _:
            return value
