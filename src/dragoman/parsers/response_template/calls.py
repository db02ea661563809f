"""Tool calls out of a region that is whole: its value, reshaped, and cast by the tool's schema. Knows no stream."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ...core.message import CustomTool, Tool
from ..values import Json, coerce, decode, encode, schema_types
from .content import fill, read
from .template import Field


class WholeCall(Struct, frozen=True):
    """arguments: JSON text, or a custom tool's input."""

    name: str
    arguments: str
    custom: bool


def read_calls(field: Field, body: str, captures: Mapping[str, str], tools: Mapping[str, Tool]) -> list[WholeCall]:
    """The calls of declared tools in a region. Raises ValueError if it cannot be read or calls none of them."""
    value = read(field.content, body)
    scope: dict[str, Json] = dict(captures)
    if field.transform_each:
        value = [fill(field.transform, {**scope, **_object(item)}) for item in _items(value)]
    elif field.transform is not None:
        value = fill(field.transform, {**scope, "content": value})
    found = [_call(item, tools) for item in (value if isinstance(value, list) else [value])]
    calls = [call for call in found if call is not None]
    if not calls:
        raise ValueError("no call of a declared tool")
    return calls


def _items(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ValueError("'transform_each' requires a list")
    return value


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError("this should be an object")
    return value


def _call(value: Json, tools: Mapping[str, Tool]) -> WholeCall | None:
    """None for a call of something undeclared."""
    item = _object(value)
    function = _object(item.get("function", item))
    name = function.get("name")
    if not isinstance(name, str):
        raise ValueError("a call without a name")
    tool = tools.get(name)
    if tool is None:
        return None
    arguments = function.get("arguments")
    if isinstance(tool, CustomTool):
        return WholeCall(name, _input(arguments), custom=True)
    if isinstance(arguments, dict) and tool.parameters is not None:
        arguments = _cast(arguments, tool.parameters)
    return WholeCall(name, _text({} if arguments is None else arguments), custom=False)


def _text(arguments: Json) -> str:
    return arguments if isinstance(arguments, str) else encode(arguments)


def _input(arguments: Json) -> str:
    if isinstance(arguments, dict) and isinstance(arguments.get("input"), str):
        arguments = arguments["input"]
    return _text(arguments)


def _cast(arguments: dict[str, Json], schema: str) -> dict[str, Json]:
    """Texts become what the schema says they are; a model that writes XML knows no other type."""
    declared = decode(schema)
    properties = declared.get("properties") if isinstance(declared, dict) else None
    if not isinstance(properties, dict):
        return arguments
    return {key: _cast_one(value, schema_types(properties.get(key))) for key, value in arguments.items()}


def _cast_one(value: Json, types: tuple[str, ...]) -> Json:
    match value:
        case str() if types:
            return coerce(value, types)
        case list() if types and "array" not in types:  # a key that was written several times
            return [coerce(item, types) if isinstance(item, str) else item for item in value]
        case _:
            return value
