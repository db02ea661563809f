"""Truncation of a prompt that exceeds the context: its first tokens, or its oldest
turns.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..core.errors import Unsupported
from ..core.message import (
    Message,
    Role,
    ToolCall,
    ToolResult,
)
from ..core.request import Conversation, GenerateRequest
from .call_terms import CallTerms
from .context_editing import build_edited_prompt
from .engine_backends import TokenBackend
from .prompt_encoding import EncodedPrompt, encode_prompt


def truncate_prompt(encoded: EncodedPrompt, request: GenerateRequest, limit: int) -> EncodedPrompt:
    """Keep only the last tokens: as many as the request sets, or with -1 as many as
    leave room for the response.
    """
    max_ids = request.limits.truncate_prompt
    if max_ids is None:
        return encoded
    if encoded.images:
        raise Unsupported(
            "A prompt with images cannot be truncated.", param="truncate_prompt_tokens"
        )
    if max_ids < 0:
        max_ids = limit - max(1, min(request.limits.max_tokens or 1, limit - 1))
    return msgspec.structs.replace(encoded, ids=encoded.ids[-max_ids:])


RESERVED_FRACTION = 8
"""Divisor of the context: when turns are dropped, this part of it is left free.
Otherwise the next request would have to drop turns again, and the prefix cache would
never be hit.
"""


async def build_fitting_prompt(
    backend: TokenBackend, request: GenerateRequest, terms: CallTerms, limit: int
) -> EncodedPrompt:
    """Return the prompt; if it does not fit and the request allows it, the prompt of
    fewer messages.

    The result may still not fit, if dropping all turns that may be dropped is not
    enough. Raises what `encode_prompt` raises.
    """
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or not (prompt.edits or prompt.drop_oldest):
        return await encode_prompt(backend, request, terms)
    request, encoded = await build_edited_prompt(backend, request, terms)
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or not prompt.drop_oldest:
        return encoded
    max_tokens = request.limits.max_tokens
    if len(encoded.ids) + max(1, min(max_tokens or 1, limit // 2)) <= limit:
        return encoded
    prompt_limit = limit - max(
        1, min(limit // RESERVED_FRACTION if max_tokens is None else max_tokens, limit // 2)
    )
    turns = find_droppable_turns(prompt.messages)

    async def encode_without(count: int) -> EncodedPrompt:
        dropped = {index for turn in turns[:count] for index in turn}
        messages = tuple(
            message for index, message in enumerate(prompt.messages) if index not in dropped
        )
        shorter_prompt = await encode_prompt(
            backend,
            msgspec.structs.replace(
                request, prompt=msgspec.structs.replace(prompt, messages=messages)
            ),
            terms,
        )
        return msgspec.structs.replace(
            shorter_prompt, n_dropped=len(dropped), applied_edits=encoded.applied_edits
        )

    # By bisection: each try renders and tokenizes the conversation, so a linear search
    # would be quadratic.
    low = 1
    high = len(turns)
    while low < high:
        middle = (low + high) // 2
        if len((await encode_without(middle)).ids) <= prompt_limit:
            high = middle
        else:
            low = middle + 1
    return await encode_without(high) if turns else encoded


def build_dropped_warning(dropped: int, limit: int) -> str:
    return (
        f"truncation: the {dropped} oldest messages were omitted to fit the context of {limit} "
        f"tokens"
    )


def find_droppable_turns(messages: Sequence[Message]) -> list[list[int]]:
    """Indices of the messages of each turn, in the order in which they may be dropped.

    A user message and everything up to the next user message form a turn. After the
    last user message, each message with calls forms a turn with its results. System
    messages, the last user message and the last turn stay.
    """
    last_question = max(
        (index for index, message in enumerate(messages) if message.role is Role.USER), default=-1
    )
    turns: list[list[int]] = []
    turn_of_call: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        if message.role in (Role.SYSTEM, Role.DEVELOPER):
            continue
        turn = (
            turns[-1] if turns and index < last_question and message.role is not Role.USER else None
        )
        # A result without its call, or the reverse, is an error for most templates, so
        # both are dropped together.
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
