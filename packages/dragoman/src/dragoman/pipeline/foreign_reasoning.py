"""Removal of reasoning with a seal that the model's engine cannot verify."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..core.capabilities import Capabilities
from ..core.message import (
    Message,
    Reasoning,
)
from ..core.request import (
    Conversation,
)


def drop_foreign_reasoning(
    conversation: Conversation, capabilities: Capabilities
) -> tuple[Conversation, tuple[str, ...]]:
    """Drop reasoning with a seal that this engine cannot verify, as a client may have
    forged it.

    Return the conversation, and warnings for the client.
    """
    if capabilities.verifies_reasoning or not _has_sealed_reasoning(conversation.messages):
        return conversation, ()
    messages: list[Message] = []
    for message in conversation.messages:
        if _has_sealed_reasoning((message,)):
            parts = tuple(
                part for part in message.parts if not isinstance(part, Reasoning) or not part.seal
            )
            if not parts:
                continue
            message = msgspec.structs.replace(message, parts=parts)  # noqa: PLW2901 - the same message, without them
        messages.append(message)
    warning = (
        "messages: reasoning that another model's server has sealed cannot be read here; it "
        "was left out"
    )
    return msgspec.structs.replace(conversation, messages=tuple(messages)), (warning,)


def _has_sealed_reasoning(messages: Sequence[Message]) -> bool:
    for message in messages:
        for part in message.parts:
            if type(part) is Reasoning and part.seal:
                return True
    return False
