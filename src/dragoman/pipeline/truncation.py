"""Drops the oldest turns of a conversation that exceeds the model's context, and counts the dropped messages.

Context edits of the request have been applied before.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..core.message import Message, Role, ToolCall, ToolResult
from ..core.request import Conversation, GenerateRequest
from .admission import CallTerms
from .context_edits import build_edited_prompt
from .models import TokenBackend
from .prompt_encoding import EncodedPrompt, encode_prompt

RESERVED_FRACTION = 8
"""One token in this many of the context is left free when turns are dropped: otherwise the next request would have to
drop again, and the prefix cache would never be hit.
"""


async def build_fitting_prompt(
    backend: TokenBackend, request: GenerateRequest, terms: CallTerms, limit: int
) -> EncodedPrompt:
    """Return the prompt; where it does not fit and the request allows it, the prompt of fewer messages.

    The result may still not fit, if dropping everything droppable is not enough. Raises what `encode_prompt` raises.
    """
    request, encoded = await build_edited_prompt(backend, request, terms)
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or not prompt.drop_oldest:
        return encoded
    max_tokens = request.limits.max_tokens
    if len(encoded.ids) + max(1, min(max_tokens or 1, limit // 2)) <= limit:
        return encoded
    prompt_limit = limit - max(1, min(limit // RESERVED_FRACTION if max_tokens is None else max_tokens, limit // 2))
    turns = find_droppable_turns(prompt.messages)

    async def without(count: int) -> EncodedPrompt:
        dropped = {index for turn in turns[:count] for index in turn}
        shorter_prompt = await encode_prompt(backend, _drop_messages(request, prompt, dropped), terms)
        return msgspec.structs.replace(shorter_prompt, n_dropped=len(dropped), applied_edits=encoded.applied_edits)

    # By bisection: each try renders and tokenizes the conversation, so a linear search would be quadratic.
    low, high = 1, len(turns)
    while low < high:
        middle = (low + high) // 2
        if len((await without(middle)).ids) <= prompt_limit:
            high = middle
        else:
            low = middle + 1
    return await without(high) if turns else encoded


def build_dropped_warning(dropped: int, limit: int) -> str:
    return f"truncation: the {dropped} oldest messages were omitted to fit the context of {limit} tokens"


def _drop_messages(request: GenerateRequest, prompt: Conversation, dropped: set[int]) -> GenerateRequest:
    messages = tuple(message for index, message in enumerate(prompt.messages) if index not in dropped)
    return msgspec.structs.replace(request, prompt=msgspec.structs.replace(prompt, messages=messages))


def find_droppable_turns(messages: Sequence[Message]) -> list[list[int]]:
    """Indices of the messages of each turn, in the order in which they may be dropped.

    A user message and everything up to the next one form a turn; after the last user message, which stays, calls form a
    turn with their results. System messages and the last turn stay.
    """
    last_question = max((index for index, message in enumerate(messages) if message.role is Role.USER), default=-1)
    turns: list[list[int]] = []
    turn_of_call: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        if message.role in (Role.SYSTEM, Role.DEVELOPER):
            continue
        turn = turns[-1] if turns and index < last_question and message.role is not Role.USER else None
        # A result without its call, or the reverse, is an error for most templates, so both leave together.
        for part in message.parts:
            if isinstance(part, ToolResult):
                turn = turn_of_call.get(part.call_id, turn)
        if turn is None:
            turn = list[int]()
            turns.append(turn)
        turn.append(index)
        turn_of_call |= {part.id: turn for part in message.parts if isinstance(part, ToolCall)}
    last_index = max((turn[-1] for turn in turns), default=-1)
    return [turn for turn in turns if last_question not in turn and last_index not in turn]
