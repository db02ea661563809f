"""Clears what is old in a conversation whose request allows it, once it is due, and counts what that saved.

What is counted is counted as the prompt is: by rendering the conversation without it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..core.events import Cleared, Edited
from ..core.message import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from ..core.request import ClearReasoning, ClearResults, Conversation, Edit, GenerateRequest
from .admission import Terms
from .models import TokenBackend
from .prompting import Prompted, prompt_of

PLACEHOLDER = Text("[old tool result cleared]")


async def edited_prompt(
    backend: TokenBackend, request: GenerateRequest, terms: Terms
) -> tuple[GenerateRequest, Prompted]:
    """The request with what is left of its conversation, and its prompt. Edits follow one another.

    One that would save nothing is not made. Raises what `prompt_of` does.
    """
    prompted = await prompt_of(backend, request, terms)
    prompt, edited = request.prompt, prompted.edited
    if not isinstance(prompt, Conversation) or not prompt.edits:
        return request, prompted
    for edit in prompt.edits:
        messages, count = _edited(edit, prompt.messages)
        if not count or not _is_due(edit, prompt.messages, len(prompted.ids)):
            continue
        less = msgspec.structs.replace(prompt, messages=messages)
        shorter = await prompt_of(backend, msgspec.structs.replace(request, prompt=less), terms)
        saved = len(prompted.ids) - len(shorter.ids)
        if saved < (edit.at_least if isinstance(edit, ClearResults) else 1):
            continue
        kind = Cleared.RESULTS if isinstance(edit, ClearResults) else Cleared.REASONING
        prompt, prompted, edited = less, shorter, (*edited, Edited(kind, count, saved))
    return msgspec.structs.replace(request, prompt=prompt), msgspec.structs.replace(prompted, edited=edited)


def _is_due(edit: Edit, messages: Sequence[Message], tokens: int) -> bool:
    if isinstance(edit, ClearReasoning):
        return True
    if edit.above_uses is not None:
        return len(_results(messages)) > edit.above_uses
    return tokens > edit.above_tokens


def _edited(edit: Edit, messages: Sequence[Message]) -> tuple[tuple[Message, ...], int]:
    """The messages as they would be, and how many results or turns are cleared in them."""
    if isinstance(edit, ClearReasoning):
        return _without_reasoning(edit, messages)
    return _without_results(edit, messages)


def _results(messages: Sequence[Message]) -> list[str]:
    """Ids of the calls that have a result, in the order of the results."""
    parts = (part for message in messages for part in message.parts)
    return list(dict.fromkeys(part.call_id for part in parts if isinstance(part, ToolResult)))


def _without_results(edit: ClearResults, messages: Sequence[Message]) -> tuple[tuple[Message, ...], int]:
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCall)}
    results = _results(messages)
    old = results[: max(0, len(results) - edit.keep)]
    gone = {id for id in old if names.get(id) not in edit.exclude}

    def cleared(part: Part) -> Part:
        match part:
            case ToolResult(call_id) if call_id in gone:
                return msgspec.structs.replace(part, content=(PLACEHOLDER,))
            case ToolCall(id, name) if id in gone and (edit.inputs is None or name in edit.inputs):
                return msgspec.structs.replace(part, arguments="" if part.custom else "{}", tokens=())
            case _:
                return part

    return tuple(_with(message, [cleared(part) for part in message.parts]) for message in messages), len(gone)


def _without_reasoning(edit: ClearReasoning, messages: Sequence[Message]) -> tuple[tuple[Message, ...], int]:
    """A turn of the assistant is all that it said, and its tools, until a user speaks again."""
    turns: list[int] = []
    turn = 0
    for message in messages:
        turn += message.role is Role.USER
        turns.append(turn)
    thought = [turn for turn, message in zip(turns, messages, strict=True) if _thinks(message)]
    thinking = list(dict.fromkeys(thought))
    old = set(thinking[: max(0, len(thinking) - edit.keep)])
    kept = tuple(
        _with(message, [part for part in message.parts if not isinstance(part, Reasoning)]) if turn in old else message
        for turn, message in zip(turns, messages, strict=True)
    )
    return kept, len(old)


def _thinks(message: Message) -> bool:
    return any(isinstance(part, Reasoning) for part in message.parts)


def _with(message: Message, parts: Sequence[Part]) -> Message:
    """A message that has nothing left says nothing: without it the turns would not alternate any more."""
    return msgspec.structs.replace(message, parts=tuple(parts) or (Text(""),))
