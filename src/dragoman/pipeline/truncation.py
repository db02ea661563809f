"""Shortens a conversation: drops the oldest turns where it exceeds the model's context, and clears old tool results and
reasoning where the request allows it. Counts what is dropped and the tokens saved.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..core.events import AppliedEdit, ClearedKind
from ..core.message import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from ..core.request import ClearReasoning, ClearToolResults, Conversation, Edit, GenerateRequest
from .admission import CallTerms
from .models import TokenBackend
from .prompt_encoding import EncodedPrompt, encode_prompt

PLACEHOLDER = Text("[old tool result cleared]")


async def build_edited_prompt(
    backend: TokenBackend, request: GenerateRequest, terms: CallTerms
) -> tuple[GenerateRequest, EncodedPrompt]:
    """Return the request with its edited conversation, and its prompt. Edits apply in order.

    An edit that would save nothing is skipped. Raises what `encode_prompt` raises.
    """
    encoded = await encode_prompt(backend, request, terms)
    prompt, applied_edits = request.prompt, encoded.applied_edits
    if not isinstance(prompt, Conversation) or not prompt.edits:
        return request, encoded
    for edit in prompt.edits:
        messages, count = _apply_edit(edit, prompt.messages)
        if not count or not _is_due(edit, prompt.messages, len(encoded.ids)):
            continue
        edited_conversation = msgspec.structs.replace(prompt, messages=messages)
        shorter_prompt = await encode_prompt(
            backend, msgspec.structs.replace(request, prompt=edited_conversation), terms
        )
        # Counted by rendering again: a template may drop old reasoning by itself, and then clearing it saves nothing.
        saved_tokens = len(encoded.ids) - len(shorter_prompt.ids)
        if saved_tokens < (edit.at_least if isinstance(edit, ClearToolResults) else 1):
            continue
        kind = ClearedKind.RESULTS if isinstance(edit, ClearToolResults) else ClearedKind.REASONING
        prompt, encoded, applied_edits = (
            edited_conversation,
            shorter_prompt,
            (*applied_edits, AppliedEdit(kind, count, saved_tokens)),
        )
    return msgspec.structs.replace(request, prompt=prompt), msgspec.structs.replace(
        encoded, applied_edits=applied_edits
    )


def _is_due(edit: Edit, messages: Sequence[Message], prompt_tokens: int) -> bool:
    if isinstance(edit, ClearReasoning):
        return True
    if edit.above_uses is not None:
        return len(_find_result_ids(messages)) > edit.above_uses
    return prompt_tokens > edit.above_tokens


def _apply_edit(edit: Edit, messages: Sequence[Message]) -> tuple[tuple[Message, ...], int]:
    """Return the edited messages, and the number of results or turns that were cleared."""
    if isinstance(edit, ClearReasoning):
        return _clear_reasoning(edit, messages)
    return _clear_results(edit, messages)


def _find_result_ids(messages: Sequence[Message]) -> list[str]:
    """Ids of the calls that have a result, in the order of the results."""
    parts = (part for message in messages for part in message.parts)
    return list(dict.fromkeys(part.call_id for part in parts if isinstance(part, ToolResult)))


def _clear_results(edit: ClearToolResults, messages: Sequence[Message]) -> tuple[tuple[Message, ...], int]:
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCall)}
    results = _find_result_ids(messages)
    old_ids = results[: max(0, len(results) - edit.keep)]
    cleared_ids = {id for id in old_ids if names.get(id) not in edit.exclude}

    def cleared(part: Part) -> Part:
        match part:
            case ToolResult(call_id) if call_id in cleared_ids:
                return msgspec.structs.replace(part, content=(PLACEHOLDER,))
            case ToolCall(id, name) if id in cleared_ids and (edit.inputs is None or name in edit.inputs):
                # The tokens are those of the old arguments, and the call is now rendered from its text.
                return msgspec.structs.replace(part, arguments="" if part.custom else "{}", tokens=())
            case _:
                return part

    return tuple(_replace_parts(message, [cleared(part) for part in message.parts]) for message in messages), len(
        cleared_ids
    )


def _clear_reasoning(edit: ClearReasoning, messages: Sequence[Message]) -> tuple[tuple[Message, ...], int]:
    """An assistant turn is all assistant and tool messages up to the next user message."""
    turns: list[int] = []
    turn = 0
    for message in messages:
        turn += message.role is Role.USER
        turns.append(turn)
    reasoning_turns = [turn for turn, message in zip(turns, messages, strict=True) if _has_reasoning(message)]
    unique_turns = list(dict.fromkeys(reasoning_turns))
    cleared_turns = set(unique_turns[: max(0, len(unique_turns) - edit.keep)])
    edited_messages = tuple(
        _replace_parts(message, [part for part in message.parts if not isinstance(part, Reasoning)])
        if turn in cleared_turns
        else message
        for turn, message in zip(turns, messages, strict=True)
    )
    return edited_messages, len(cleared_turns)


def _has_reasoning(message: Message) -> bool:
    return any(isinstance(part, Reasoning) for part in message.parts)


def _replace_parts(message: Message, parts: Sequence[Part]) -> Message:
    """An empty message stays as an empty text: without it the roles would no longer alternate."""
    return msgspec.structs.replace(message, parts=tuple(parts) or (Text(""),))


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
    prompt_limit = limit - max(1, min(limit // RESERVED_FRACTION if max_tokens is None else max_tokens, limit // 2))
    turns = find_droppable_turns(prompt.messages)

    async def without(count: int) -> EncodedPrompt:
        dropped = {index for turn in turns[:count] for index in turn}
        messages = tuple(message for index, message in enumerate(prompt.messages) if index not in dropped)
        shorter_prompt = await encode_prompt(
            backend, msgspec.structs.replace(request, prompt=msgspec.structs.replace(prompt, messages=messages)), terms
        )
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
