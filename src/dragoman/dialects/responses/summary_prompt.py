"""Compaction: the prompt that requests a summary, and the messages that replace the summarized ones.

The summary replaces everything that the assistant and its tools wrote before. User and system messages remain.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...core.message import Message, Role, Text, ToolChoice
from ...core.request import Conversation, GenerateRequest

SUMMARY_REQUEST = Message(
    Role.USER,
    (
        Text(
            "Summarize the conversation so far so that you can continue it without access to the original messages. "
            "Include the user's requests, the work done and its results, the names, file paths, numbers and decisions "
            "that still matter, and the remaining tasks. Reply with the summary only."
        ),
    ),
)
SUMMARY_PREFIX = "Summary of the conversation so far:\n\n"
"""The text before a summary in a prompt."""
MAX_SUMMARY_TOKENS = 4096
"""Maximum tokens of a summary, unless the request sets one: a model that does not stop would fill the whole context."""


def build_summary_request(request: GenerateRequest) -> GenerateRequest:
    """Build the request for a summary: unconstrained text about as many turns as fit the context."""
    prompt = request.prompt
    assert isinstance(prompt, Conversation)
    limits = request.limits
    return msgspec.structs.replace(
        request,
        # Compaction is asked for when a conversation has become too long, so it must not fail by that.
        prompt=msgspec.structs.replace(prompt, tool_choice=ToolChoice("none"), drop_oldest=True),
        limits=msgspec.structs.replace(limits, max_tokens=limits.max_tokens or MAX_SUMMARY_TOKENS),
        constraint=None,
        logprobs=None,
    )


def apply_summary(summary: str, messages: Sequence[Message]) -> list[Message]:
    """Replace the messages before a compaction. The summary is an assistant message, so that turns alternate."""
    remaining = [message for message in messages if message.role not in (Role.ASSISTANT, Role.TOOL)]
    return [*remaining, Message(Role.ASSISTANT, (Text(SUMMARY_PREFIX + summary),))] if summary else remaining
