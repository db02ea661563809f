"""Checks of JSON values. Each raises Violation; `location` is the path of the value in
the message.
"""

from __future__ import annotations

from typing import Any, cast

JsonObject = dict[str, Any]


class Violation(AssertionError):
    """A rule is violated. The message states the rule and the offending value."""


def require(condition: object, rule: str) -> None:
    if not condition:
        raise Violation(rule)


def require_object(value: object, location: str) -> JsonObject:
    require(isinstance(value, dict), f"{location} is {_shorten(value)}, expected an object")
    return cast(JsonObject, value)


def require_objects(value: object, location: str) -> list[JsonObject]:
    return [
        require_object(item, f"{location}[{i}]")
        for i, item in enumerate(require_array(value, location))
    ]


def require_array(value: object, location: str) -> list[Any]:
    require(isinstance(value, list), f"{location} is {_shorten(value)}, expected an array")
    return cast(list[Any], value)


def require_string(value: object, location: str) -> str:
    require(isinstance(value, str), f"{location} is {_shorten(value)}, expected a string")
    return cast(str, value)


def require_count(value: object, location: str) -> int:
    # Python's bool is a subclass of int.
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    require(is_count, f"{location} is {_shorten(value)}, expected a non-negative integer")
    return cast(int, value)


def require_key(value: JsonObject, key: str, location: str) -> None:
    require(key in value, f"{location} has no {key}")


def _shorten(value: object) -> str:
    return repr(value)[:80]
