"""Decodes or encodes strict JSON."""

from __future__ import annotations

import json
from typing import cast

from ..core.json_types import JsonValue


def decode(text: str) -> JsonValue:
    """Decode strict JSON. Raises ValueError if the text is not valid JSON or is nested
    too deeply.
    """
    try:
        return cast("JsonValue", json.loads(text, parse_constant=_reject_constant))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _reject_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not valid JSON")


def encode(value: JsonValue) -> str:
    """Encode as JSON; a lone surrogate, which UTF-8 cannot encode, is escaped.

    Raises ValueError if the value is nested too deeply.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return text
