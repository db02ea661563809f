"""Converts a model's text to JSON values, typed by a tool's JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.json_types import JsonValue
from .json_codec import decode


def coerce(raw: str, types: Sequence[str]) -> JsonValue:
    """Convert the text to the first of these types that fits, other than `string`;
    return it unchanged if none fits.
    """
    for type_name in types:
        try:
            return _convert(raw, type_name)
        except (ValueError, OverflowError):
            continue
    return raw


# A JSON number (RFC 8259, section 6).
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<power>[eE][+-]?[0-9]+)?")


def match_number(raw: str, types: Sequence[str]) -> str | None:
    """Return the text, stripped, if it is a JSON number of one of these types, else
    None. This preserves its digits.
    """
    stripped = raw.strip()
    match = _NUMBER.fullmatch(stripped)
    if match is None:
        return None
    is_integer = match["fraction"] is None and match["power"] is None
    return stripped if "number" in types or (is_integer and "integer" in types) else None


def guess(raw: str) -> JsonValue:
    """Convert a text of unknown type: decode it if it is valid JSON, else return it
    unchanged.
    """
    try:
        return decode(raw)
    except ValueError:
        return raw


def _convert(raw: str, type_name: str) -> JsonValue:
    stripped = raw.strip()
    match type_name:
        case "integer" | "number":
            number = float(stripped)
            if number - number != 0:
                raise ValueError("an infinite number, or NaN")
            # A float would change the digits of a large integer.
            if stripped.lstrip("+-").isdecimal():
                return int(stripped)
            if type_name == "number":
                return int(number) if number.is_integer() and "." not in stripped else number
            if number.is_integer():
                return int(number)
        case "boolean" if stripped.lower() in ("true", "1", "false", "0"):
            return stripped.lower() in ("true", "1")
        case "null" if stripped in ("null", "None"):
            return None
        case "object" | "array":
            value = decode(raw)
            if isinstance(value, dict if type_name == "object" else list):
                return value
        case _:
            pass
    raise ValueError(f"no {type_name}")
