"""What a checker raises when a server breaks a rule of the wire, and the rules that every JSON shape needs."""

from __future__ import annotations

from typing import Any, cast

Json = dict[str, Any]


class Violation(AssertionError):
    """The message says which rule, and with what it was broken."""


def must(kept: object, rule: str) -> None:
    if not kept:
        raise Violation(rule)


def an_object(value: object, at: str) -> Json:
    must(isinstance(value, dict), f"{at} is {_short(value)}, expected an object")
    return cast(Json, value)


def objects(value: object, at: str) -> list[Json]:
    return [an_object(item, f"{at}[{i}]") for i, item in enumerate(an_array(value, at))]


def an_array(value: object, at: str) -> list[Any]:
    must(isinstance(value, list), f"{at} is {_short(value)}, expected an array")
    return cast(list[Any], value)


def a_text(value: object, at: str) -> str:
    must(isinstance(value, str), f"{at} is {_short(value)}, expected a string")
    return cast(str, value)


def a_count(value: object, at: str) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    must(good, f"{at} is {_short(value)}, expected a count")
    return cast(int, value)


def a_key(value: Json, key: str, at: str) -> None:
    must(key in value, f"{at} has no {key}")


def _short(value: object) -> str:
    return repr(value)[:80]
