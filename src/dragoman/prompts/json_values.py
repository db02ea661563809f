"""JSON as Python holds it: what templates are given and what tokenizer files consist of. Pure."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonDict: TypeAlias = "dict[str, Json]"


class InvalidJson(ValueError):
    """The text is not JSON, or not of the kind that was asked for."""


def decode(raw: bytes | str) -> Json:
    """Raises NotJson; also for numbers beyond measure, half surrogate pairs and nesting without end."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidJson(str(error)) from error


def decode_object(raw: bytes | str) -> JsonDict:
    value = decode(raw)
    if not isinstance(value, dict):
        raise InvalidJson("it is not an object")
    return value
