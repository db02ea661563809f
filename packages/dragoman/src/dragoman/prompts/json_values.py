"""JSON as Python values, for templates or tokenizer files."""

from __future__ import annotations

import msgspec

from ..core.json_types import JsonObject, JsonValue


class InvalidJson(ValueError):
    """Raised for text that is not JSON, or is JSON of another type."""


def decode(raw: bytes | str) -> JsonValue:
    """Decode JSON. Raises InvalidJson, also for excessive numbers, lone surrogates and
    excessive nesting.
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidJson(str(error)) from error


def decode_object(raw: bytes | str) -> JsonObject:
    value = decode(raw)
    if not isinstance(value, dict):
        raise InvalidJson("it is not an object")
    return value
