"""The message of a library's exception, for the client whose request failed by it."""

from __future__ import annotations

_MAX_LENGTH = 300
"""Characters; some libraries print whole tensors."""


def describe_error(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type if it has none."""
    lines = [line.strip() for line in str(error).splitlines()]
    first_line = next((line for line in lines if line), type(error).__name__)
    return first_line[:_MAX_LENGTH]
