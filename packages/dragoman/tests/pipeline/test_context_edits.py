"""Context edits: what is cleared and when, and token counts after edits."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from dragoman.core.events import AppliedEdit, ClearedKind
from dragoman.core.message import Message, Reasoning, Role, Text, ToolCall, ToolResult
from dragoman.core.request import (
    ClearReasoning,
    ClearToolResults,
    Conversation,
    Edit,
    GenerateRequest,
)
from dragoman.launch import build_models
from dragoman.pipeline.call_terms import CallTerms
from dragoman.pipeline.context_editing import PLACEHOLDER, build_edited_prompt
from dragoman.pipeline.engine_backends import TokenBackend
from dragoman.pipeline.prompt_encoding import encode_prompt
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

USER = Message(Role.USER, (Text("Look further."),))
ALWAYS = ClearToolResults(above_tokens=0)
TERMS = CallTerms("a", lambda: "id", datetime.now(UTC))


def step(id: str, name: str = "search") -> tuple[Message, Message]:
    """Return reasoning, a call and its result."""
    call = Message(
        Role.ASSISTANT,
        (Reasoning("Where is it?"), ToolCall(id, name, '{"query": "the long way round"}')),
    )
    return call, Message(Role.TOOL, (ToolResult(id, (Text("Nothing was found. " * 10),)),), name)


STEPS = (USER, *step("1"), *step("2", "read"), USER, *step("3"), *step("4"))


@pytest.fixture(scope="module")
def backend() -> TokenBackend:
    (model,) = build_models(Settings(), SystemClock())
    assert isinstance(model.backend, TokenBackend)
    return model.backend


def request(*edits: Edit) -> GenerateRequest:
    return GenerateRequest("tiny", Conversation(STEPS, edits=edits), add_special_tokens=False)


async def apply_edits(
    backend: TokenBackend, *edits: Edit
) -> tuple[tuple[Message, ...], tuple[AppliedEdit, ...], int]:
    """Return the remaining messages, the applied edits, and the number of prompt
    tokens.
    """
    request_, prompted = await build_edited_prompt(backend, request(*edits), TERMS)
    assert isinstance(request_.prompt, Conversation)
    assert prompted.ids == (await encode_prompt(backend, request_, TERMS)).ids
    return request_.prompt.messages, prompted.applied_edits, len(prompted.ids)


def list_cleared(messages: tuple[Message, ...]) -> list[str]:
    parts = (part for message in messages for part in message.parts)
    return [
        part.call_id
        for part in parts
        if isinstance(part, ToolResult) and part.content == (PLACEHOLDER,)
    ]


@pytest.mark.parametrize(
    ("edit", "gone"),
    [
        (ALWAYS, "1234"),
        (ClearToolResults(0, keep=3), "1"),
        (ClearToolResults(0, keep=9), ""),
        (ClearToolResults(0, keep=1, exclude=frozenset({"read"})), "13"),
        (ClearToolResults(10**6), ""),
        (ClearToolResults(10**6, above_uses=3), "1234"),
        (ClearToolResults(0, above_uses=4), ""),
        (ClearToolResults(0, at_least=10**6), ""),
    ],
)
async def test_clear_tool_results_removes_oldest_after_trigger(
    backend: TokenBackend, edit: ClearToolResults, gone: str
):
    before = len((await encode_prompt(backend, request(), TERMS)).ids)
    messages, edits, tokens = await apply_edits(backend, edit)
    assert list_cleared(messages) == list(gone)
    assert edits == (
        (AppliedEdit(ClearedKind.RESULTS, len(gone), before - tokens),) if gone else ()
    )
    assert (tokens < before) == bool(gone)


async def test_clear_tool_results_requires_minimum_savings(backend: TokenBackend):
    _, (edits,), _ = await apply_edits(backend, ALWAYS)
    for least, count in ((edits.tokens, 1), (edits.tokens + 1, 0)):
        _, again, _ = await apply_edits(backend, msgspec.structs.replace(ALWAYS, at_least=least))
        assert len(again) == count


@pytest.mark.parametrize(
    ("inputs", "emptied"), [(frozenset[str](), ""), (None, "1234"), (frozenset({"read"}), "2")]
)
async def test_clear_tool_results_optionally_clears_call_inputs(
    backend: TokenBackend, inputs: frozenset[str] | None, emptied: str
):
    messages, _, _ = await apply_edits(backend, ClearToolResults(0, inputs=inputs))
    calls = [part for message in messages for part in message.parts if isinstance(part, ToolCall)]
    assert [call.id for call in calls if call.arguments == "{}"] == list(emptied)


@pytest.mark.parametrize(("keep", "thoughts", "turns"), [(2, 4, 0), (1, 2, 1)])
async def test_clear_reasoning_keeps_only_recent_turns(
    backend: TokenBackend, keep: int, thoughts: int, turns: int
):
    messages, edits, _ = await apply_edits(backend, ClearReasoning(keep))
    left = [part for message in messages for part in message.parts if isinstance(part, Reasoning)]
    assert (len(left), sum(edit.count for edit in edits)) == (thoughts, turns)


async def test_consecutive_edits_each_report_saved_tokens(backend: TokenBackend):
    before = len((await encode_prompt(backend, request(), TERMS)).ids)
    _, edits, tokens = await apply_edits(backend, ClearReasoning(1), ALWAYS)
    assert before - sum(edit.tokens for edit in edits) == tokens
