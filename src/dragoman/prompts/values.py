"""JSON as Python holds it: what templates are given and what tokenizer files consist of. Pure."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Object: TypeAlias = "dict[str, Json]"


class NotJson(ValueError):
    """The text is not JSON, or not of the kind that was asked for."""


def decode(raw: bytes | str) -> Json:
    """Raises NotJson; also for numbers beyond measure, half surrogate pairs and nesting without end."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise NotJson(str(error)) from error


def decode_object(raw: bytes | str) -> Object:
    value = decode(raw)
    if not isinstance(value, dict):
        raise NotJson("it is not an object")
    return value
