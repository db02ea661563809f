"""Parses Ollama's `keep_alive`, a number of seconds or a Go duration."""

from __future__ import annotations

import math
import re

from ..field_errors import abbreviate, invalid_value

_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}


_TERM = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)"


_DURATION = re.compile(rf"[+-]?(?:{_TERM})+", re.ASCII)


_NUMBER = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,9})?", re.ASCII)


_TERMS = re.compile(_TERM, re.ASCII)


MAX_DURATION_TEXT = 64


def read_keep_alive(value: float | str | None) -> float | None:
    """Return seconds; infinity for a negative duration, None if absent. Raises
    RequestError.

    A text is a number of seconds, or a Go duration
    (https://pkg.go.dev/time#ParseDuration).
    """
    if value is None:
        return None
    seconds = value
    is_short = isinstance(value, str) and len(value) <= MAX_DURATION_TEXT
    if isinstance(seconds, str):
        if is_short and _NUMBER.fullmatch(seconds):
            seconds = float(seconds)
        elif is_short and _DURATION.fullmatch(seconds):
            sign = -1 if seconds.startswith("-") else 1
            seconds = sign * sum(
                float(number) * _SECONDS[unit] for number, unit in _TERMS.findall(seconds)
            )
        else:
            raise invalid_value(
                "keep_alive",
                f"expected seconds, or a duration such as '5m', '1h30m' or '-1s', got "
                f"{abbreviate(seconds)}",
            )
    return math.inf if seconds < 0 else seconds
