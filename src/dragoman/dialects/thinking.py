"""The switch for thinking in a client's `chat_template_kwargs`, for all dialects."""

from __future__ import annotations

from typing import cast

from msgspec import Raw

from .body import read_json_value

THINKING_KWARGS = ("enable_thinking", "thinking")
"""The kwargs that templates use to switch thinking on or off."""


def read_thinking_switch(kwargs: Raw) -> bool | None:
    """The value of the switch in `chat_template_kwargs`; None if not set."""
    value = read_json_value(kwargs, "chat_template_kwargs")
    if not isinstance(value, dict):
        return None
    values = cast(dict[str, object], value)
    for name in THINKING_KWARGS:
        if isinstance(switch := values.get(name), bool):
            return switch
    return None
