"""What a client tells the chat template about thinking, in whatever dialect."""

from __future__ import annotations

from typing import cast

from msgspec import Raw

from .body import read_json_value

THINKING_KWARGS = ("enable_thinking", "thinking")
"""The names under which templates know it."""


def read_thinking_switch(kwargs: Raw) -> bool | None:
    """What `chat_template_kwargs` says of it; None where it says nothing."""
    value = read_json_value(kwargs, "chat_template_kwargs")
    values = cast(dict[str, object], value) if isinstance(value, dict) else {}
    for name in THINKING_KWARGS:
        if isinstance(switch := values.get(name), bool):
            return switch
    return None
