"""Context editing (Anthropic): clears old tool results or reasoning of a conversation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..core.events import AppliedEdit, ClearedKind
from ..core.message import (
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from ..core.request import ClearReasoning, ClearToolResults, Conversation, GenerateRequest
from .call_terms import CallTerms
from .engine_backends import TokenBackend
from .prompt_encoding import EncodedPrompt, encode_prompt

PLACEHOLDER = Text("[old tool result cleared]")


async def build_edited_prompt(
    backend: TokenBackend, request: GenerateRequest, terms: CallTerms
) -> tuple[GenerateRequest, EncodedPrompt]:
    """Return the request with its edited conversation, and its prompt. Edits apply in
    order.

    An edit that would save nothing is skipped. Raises what `encode_prompt` raises.
    """
    encoded = await encode_prompt(backend, request, terms)
    prompt = request.prompt
    applied_edits = encoded.applied_edits
    if not isinstance(prompt, Conversation) or not prompt.edits:
        return request, encoded
    for edit in prompt.edits:
        if isinstance(edit, ClearReasoning):
            kind = ClearedKind.REASONING
            least_saved = 1
            is_due = True
            messages, count = _clear_reasoning(edit, prompt.messages)
        else:
            kind = ClearedKind.RESULTS
            least_saved = edit.at_least
            messages, count = _clear_results(edit, prompt.messages)
            if edit.above_uses is None:
                is_due = len(encoded.ids) > edit.above_tokens
            else:
                is_due = len(_find_result_ids(prompt.messages)) > edit.above_uses
        if not count or not is_due:
            continue
        edited_conversation = msgspec.structs.replace(prompt, messages=messages)
        shorter_prompt = await encode_prompt(
            backend, msgspec.structs.replace(request, prompt=edited_conversation), terms
        )
        # Counted by rendering again: a template may drop old reasoning by itself, and
        # then clearing it saves nothing.
        saved_tokens = len(encoded.ids) - len(shorter_prompt.ids)
        if saved_tokens >= least_saved:
            prompt = edited_conversation
            encoded = shorter_prompt
            applied_edits = (*applied_edits, AppliedEdit(kind, count, saved_tokens))
    return msgspec.structs.replace(request, prompt=prompt), msgspec.structs.replace(
        encoded, applied_edits=applied_edits
    )


def _find_result_ids(messages: Sequence[Message]) -> list[str]:
    """Return the ids of the calls that have a result, in the order of the results."""
    parts = (part for message in messages for part in message.parts)
    return list(dict.fromkeys(part.call_id for part in parts if isinstance(part, ToolResult)))


def _clear_results(
    edit: ClearToolResults, messages: Sequence[Message]
) -> tuple[tuple[Message, ...], int]:
    """Return the edited messages, and the number of results that were cleared."""
    names = {
        part.id: part.name
        for message in messages
        for part in message.parts
        if isinstance(part, ToolCall)
    }
    results = _find_result_ids(messages)
    old_ids = results[: max(0, len(results) - edit.keep)]
    cleared_ids = {id for id in old_ids if names.get(id) not in edit.exclude}

    def clear_part(part: Part) -> Part:
        match part:
            case ToolResult(call_id) if call_id in cleared_ids:
                return msgspec.structs.replace(part, content=(PLACEHOLDER,))
            case ToolCall(id, name) if id in cleared_ids and (
                edit.inputs is None or name in edit.inputs
            ):
                # The sampled tokens contain the old arguments, so the call is now
                # rendered from its text.
                return msgspec.structs.replace(
                    part, arguments="" if part.custom else "{}", tokens=()
                )
            case _:
                return part

    edited_messages = [
        _replace_parts(message, [clear_part(part) for part in message.parts])
        for message in messages
    ]
    return tuple(edited_messages), len(cleared_ids)


def _clear_reasoning(
    edit: ClearReasoning, messages: Sequence[Message]
) -> tuple[tuple[Message, ...], int]:
    """Return the edited messages, and the number of turns that were cleared.

    An assistant turn is all assistant and tool messages up to the next user message.
    """
    turns: list[int] = []
    turn = 0
    for message in messages:
        turn += message.role is Role.USER
        turns.append(turn)
    parts = (
        (turn, part)
        for turn, message in zip(turns, messages, strict=True)
        for part in message.parts
    )
    reasoning_turns = list(
        dict.fromkeys(turn for turn, part in parts if isinstance(part, Reasoning))
    )
    cleared_turns = set(reasoning_turns[: max(0, len(reasoning_turns) - edit.keep)])
    edited_messages = tuple(
        _replace_parts(message, [part for part in message.parts if not isinstance(part, Reasoning)])
        if turn in cleared_turns
        else message
        for turn, message in zip(turns, messages, strict=True)
    )
    return edited_messages, len(cleared_turns)


def _replace_parts(message: Message, parts: Sequence[Part]) -> Message:
    """Replace a message's parts. Without parts it gets an empty text, so that roles
    still alternate.
    """
    return msgspec.structs.replace(message, parts=tuple(parts) or (Text(""),))
