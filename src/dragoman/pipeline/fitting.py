"""Leaves out the oldest of a conversation that does not fit its model, in whole turns, and counts what it left out.

What its request has cleared before that is gone already.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..core.message import Message, Role, ToolCall, ToolResult
from ..core.request import Conversation, GenerateRequest
from .admission import Terms
from .editing import edited_prompt
from .models import TokenBackend
from .prompting import Prompted, prompt_of

SHARE = 8
"""One in so many tokens of the context is kept free for the answer, once turns have to go: else the next one would
have to go too, and no cached prefix would ever last."""


async def prompt_that_fits(backend: TokenBackend, request: GenerateRequest, terms: Terms, limit: int) -> Prompted:
    """The prompt; where it does not fit and the request allows it, that of fewer messages.

    If all that may go does not suffice it still does not fit. Raises what `prompt_of` does.
    """
    request, prompted = await edited_prompt(backend, request, terms)
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or not prompt.drop_oldest:
        return prompted
    asked = request.limits.max_tokens
    if len(prompted.ids) + max(1, min(asked or 1, limit // 2)) <= limit:
        return prompted
    room = limit - max(1, min(limit // SHARE if asked is None else asked, limit // 2))
    turns = droppable(prompt.messages)

    async def without(count: int) -> Prompted:
        gone = {index for turn in turns[:count] for index in turn}
        shorter = await prompt_of(backend, _without(request, prompt, gone), terms)
        return msgspec.structs.replace(shorter, dropped=len(gone), edited=prompted.edited)

    fewest, most = 1, len(turns)
    while fewest < most:
        middle = (fewest + most) // 2
        if len((await without(middle)).ids) <= room:
            most = middle
        else:
            fewest = middle + 1
    return await without(most) if turns else prompted


def dropped_warning(dropped: int, limit: int) -> str:
    return f"truncation: the {dropped} oldest messages were omitted to fit the context of {limit} tokens"


def _without(request: GenerateRequest, prompt: Conversation, gone: set[int]) -> GenerateRequest:
    messages = tuple(message for index, message in enumerate(prompt.messages) if index not in gone)
    return msgspec.structs.replace(request, prompt=msgspec.structs.replace(prompt, messages=messages))


def droppable(messages: Sequence[Message]) -> list[list[int]]:
    """Indices of the messages of each turn, in the order in which they may go.

    A question and all that was said to it go together; after the last question, which stays, calls go together with
    their results. What the system said stays, and so does the last turn.
    """
    asked = max((index for index, message in enumerate(messages) if message.role is Role.USER), default=-1)
    turns: list[list[int]] = []
    turn_of_call: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        if message.role in (Role.SYSTEM, Role.DEVELOPER):
            continue
        turn = turns[-1] if turns and index < asked and message.role is not Role.USER else None
        for part in message.parts:
            if isinstance(part, ToolResult):
                turn = turn_of_call.get(part.call_id, turn)
        if turn is None:
            turn = list[int]()
            turns.append(turn)
        turn.append(index)
        turn_of_call |= {part.id: turn for part in message.parts if isinstance(part, ToolCall)}
    last = max((turn[-1] for turn in turns), default=-1)
    return [turn for turn in turns if asked not in turn and last not in turn]
