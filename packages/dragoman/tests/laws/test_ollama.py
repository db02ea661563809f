"""Ollama's dialect: the lines of a stream add up to the full response, including calls
and logprobs.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from dragoman.core.message import Reasoning, Refusal, Text, ToolCall
from dragoman.core.reply import ReplyBuilder
from dragoman.dialects.ollama import OllamaRenderOptions, OllamaTimings, OllamaWriter
from dragoman_check.rules import ollama as grammar

from .sdk import write_stream
from .strategies import Case, Kinds, cases

ONE = Kinds(max_choices=1, custom=False, weights=False)
views = st.builds(
    OllamaRenderOptions,
    model=st.sampled_from(("tiny", "org/model:latest", 'a"\u2028')),
    now=st.just(lambda: 1_700_000_000.25),
    measure=st.just(lambda: OllamaTimings(40, 10, 20, 10)),
    is_chat=st.booleans(),
    logprobs=st.sampled_from((None, 0, 1)),
    returns_context=st.booleans(),
)


@given(cases(ONE), views)
def test_stream_lines_fold_to_full_response(case: Case, view: OllamaRenderOptions):
    chunks = grammar.check_stream(
        write_stream(OllamaWriter(view), case.events), is_chat=view.is_chat
    )
    full: dict[str, Any] = json.loads(OllamaWriter(view).render_full(case.reply))
    grammar.check_object(full, is_chat=view.is_chat)
    assert grammar.fold_chunks(chunks, is_chat=view.is_chat) == full


@given(cases(ONE), views)
def test_full_response_contains_reply_content(case: Case, view: OllamaRenderOptions):
    full: dict[str, Any] = json.loads(OllamaWriter(view).render_full(case.reply))
    choice = case.reply.choices[0]
    part = full["message"] if view.is_chat else full
    text = "".join(part.text for part in choice.parts if isinstance(part, Text | Refusal))
    assert part["content" if view.is_chat else "response"] == text
    assert part.get("thinking", "") == "".join(
        part.text for part in choice.parts if isinstance(part, Reasoning)
    )
    assert full["eval_count"] == case.reply.usage.completion
    # Answers with `length` are complete here: the strategies' arguments are whole
    # objects.
    calls = [(call.name, json.loads(call.arguments)) for call in choice.list_calls()]
    tool_calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in part.get("tool_calls", ())
    ]
    assert tool_calls == calls
    if view.logprobs is not None:
        tokens = [token for one in choice.parts for token in one.tokens]
        assert [entry["token"] for entry in full.get("logprobs", ())] == [
            token.text for token in tokens
        ]
    context = case.reply.prompts[0]
    if view.returns_context and context is not None:
        assert full.get("context", []) == [token.id for token in (*context.tokens, *choice.tokens)]


@given(
    cases(Kinds((Text, ToolCall), (FinishReason.LENGTH, FinishReason.ABORT), 1, custom=False)),
    st.data(),
)
def test_truncated_call_is_omitted(case: Case, data: st.DataObject):
    view = OllamaRenderOptions("m", lambda: 0.0, lambda: OllamaTimings(0, 0, 0, 0), is_chat=True)
    parts = case.reply.choices[0].parts
    if not parts or not isinstance(parts[-1], ToolCall) or len(parts[-1].arguments) < 3:
        return
    length = data.draw(st.integers(0, len(parts[-1].arguments) - 1))
    cut = replace(parts[-1], arguments=parts[-1].arguments[:length])
    choice = replace(case.reply.choices[0], parts=(*parts[:-1], cut))
    full = json.loads(OllamaWriter(view).render_full(replace(case.reply, choices=(choice,))))
    assert len(full["message"].get("tool_calls", ())) == len(choice.list_calls()) - 1


def test_call_truncated_by_stop_string_is_omitted():
    """An upstream may apply stop strings to arguments too."""
    view = OllamaRenderOptions("m", lambda: 0.0, lambda: OllamaTimings(0, 0, 0, 0), is_chat=True)
    events: tuple[Event, ...] = (
        Started(1), ToolCallStart(0, "call_1", "f"), ToolCallDelta(0, '{"a": "x'),
        ChoiceFinished(0, FinishReason.STOP, "END"), Finished(Usage(1, 3)),
    )  # fmt: skip
    writer = OllamaWriter(view)
    folded = ReplyBuilder()
    for event in events:
        folded.feed(event)
    lines = b"".join(map(writer.feed, events)).splitlines()
    for line in (*lines, OllamaWriter(view).render_full(folded.build())):
        assert "tool_calls" not in json.loads(line)["message"]
