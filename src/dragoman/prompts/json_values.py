"""JSON as Python values, for templates and tokenizer files. Pure."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonDict: TypeAlias = "dict[str, Json]"


class InvalidJson(ValueError):
    """The text is not JSON, or not of the requested type."""


def decode(raw: bytes | str) -> Json:
    """Decode JSON. Raises InvalidJson, also for excessive numbers, lone surrogates and excessive nesting."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidJson(str(error)) from error


def decode_object(raw: bytes | str) -> JsonDict:
    value = decode(raw)
    if not isinstance(value, dict):
        raise InvalidJson("it is not an object")
    return value
