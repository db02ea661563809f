"""A conversation made shorter: what the model is asked for, and what a summary stands for where it comes back.

It is in place of everything that the assistant and its tools said before it. What users and the system said stays.
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
"""What stands before a summary where it is part of a prompt."""
MAX_SUMMARY_TOKENS = 4096
"""Of a summary, unless the request says otherwise: a model that does not end would use up the whole context."""


def build_summary_request(request: GenerateRequest) -> GenerateRequest:
    """Free text, whatever the conversation was to end in; of as much of it as fits."""
    prompt = request.prompt
    assert isinstance(prompt, Conversation)
    limits = request.limits
    return msgspec.structs.replace(
        request,
        prompt=msgspec.structs.replace(prompt, tool_choice=ToolChoice("none"), drop_oldest=True),
        limits=msgspec.structs.replace(limits, max_tokens=limits.max_tokens or MAX_SUMMARY_TOKENS),
        constraint=None,
        logprobs=None,
    )


def apply_summary(summary: str, messages: Sequence[Message]) -> list[Message]:
    """The messages that a compaction leaves of those before it. It speaks as the assistant, so that turns alternate."""
    remaining = [message for message in messages if message.role not in (Role.ASSISTANT, Role.TOOL)]
    return [*remaining, Message(Role.ASSISTANT, (Text(SUMMARY_PREFIX + summary),))] if summary else remaining
