"""The checks that reject a field's value, worded like OpenAI's errors."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from ..core.errors import RequestError

T = TypeVar("T")

MAX_ECHO = 64
"""Maximum characters of a client's value that an error message quotes."""


def abbreviate(value: str) -> str:
    """Quote a client's value for an error message, truncated to MAX_ECHO characters."""
    return repr(value) if len(value) <= MAX_ECHO else repr(value[:MAX_ECHO]) + "..."


def check_one_of(value: str, allowed: Collection[str], param: str) -> str:
    """Return the value if it is allowed. Raises RequestError."""
    if value not in allowed:
        supported = ", ".join(repr(word) for word in allowed)
        raise RequestError(
            f"Invalid value for '{param}': {abbreviate(value)}. Supported values are: {supported}.",
            param=param,
            code="invalid_value",
        )
    return value


def require_value(value: T | None, param: str) -> T:
    """Return a value that must be present. Raises RequestError if it is None."""
    if value is None:
        raise missing_parameter(param)
    return value


def missing_parameter(param: str, hint: str = "") -> RequestError:
    return RequestError(
        f"Missing required parameter: '{param}'.{hint}",
        param=param,
        code="missing_required_parameter",
    )


def parse_digits(text: str, max_digits: int) -> int | None:
    """Parse an unsigned integer of ASCII digits; None if it is not one, or has more
    digits than allowed.
    """
    # The length is checked first, since `int` raises ValueError for more than 4300
    # digits.
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= max_digits else None


def invalid_value(param: str, expectation: str) -> RequestError:
    """Build the error of an invalid value.

    expectation: description of the allowed values.
    """
    return RequestError(
        f"Invalid value for '{param}': {expectation}.", param=param, code="invalid_value"
    )
