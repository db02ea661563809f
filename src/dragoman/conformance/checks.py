"""The error for a violated rule of a wire grammar, and checks of JSON shapes."""

from __future__ import annotations

from typing import Any, cast

Json = dict[str, Any]


class Violation(AssertionError):
    """A violated rule. The message contains the rule and the offending value."""


def require(condition: object, rule: str) -> None:
    if not condition:
        raise Violation(rule)


def require_object(value: object, location: str) -> Json:
    require(isinstance(value, dict), f"{location} is {_shorten(value)}, expected an object")
    return cast(Json, value)


def require_objects(value: object, location: str) -> list[Json]:
    return [require_object(item, f"{location}[{i}]") for i, item in enumerate(require_array(value, location))]


def require_array(value: object, location: str) -> list[Any]:
    require(isinstance(value, list), f"{location} is {_shorten(value)}, expected an array")
    return cast(list[Any], value)


def require_string(value: object, location: str) -> str:
    require(isinstance(value, str), f"{location} is {_shorten(value)}, expected a string")
    return cast(str, value)


def require_count(value: object, location: str) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    require(is_count, f"{location} is {_shorten(value)}, expected a count")
    return cast(int, value)


def require_key(value: Json, key: str, location: str) -> None:
    require(key in value, f"{location} has no {key}")


def _shorten(value: object) -> str:
    return repr(value)[:80]
