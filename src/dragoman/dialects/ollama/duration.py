"""`keep_alive`: seconds as a number, or a duration as Go writes it."""

from __future__ import annotations

import math
import re

from ..body import abbreviate, invalid_value

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_TERM = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"[+-]?(?:{_TERM})+", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,9})?", re.ASCII)
_TERMS = re.compile(_TERM, re.ASCII)
MAX_DURATION_TEXT = 64


def read_keep_alive(value: float | str | None) -> float | None:
    """Return seconds; infinity for a negative duration, None if absent. Raises RequestError."""
    if value is None:
        return None
    seconds = _parse_duration(value) if isinstance(value, str) else value
    return math.inf if seconds < 0 else seconds


def _parse_duration(text: str) -> float:
    """Parse a Go duration (https://pkg.go.dev/time#ParseDuration), or a number of seconds."""
    if len(text) <= MAX_DURATION_TEXT:
        if _NUMBER.fullmatch(text):
            return float(text)
        if _DURATION.fullmatch(text):
            sign = -1 if text.startswith("-") else 1
            return sign * sum(float(number) * _SECONDS[unit] for number, unit in _TERMS.findall(text))
    raise invalid_value(
        "keep_alive", f"expected seconds, or a duration such as '5m', '1h30m' or '-1s', got {abbreviate(text)}"
    )
