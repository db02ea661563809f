"""Messages: the official SDK accumulates our stream to our full response."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from msgspec.structs import replace
from pydantic import TypeAdapter

from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from dragoman.core.reply import ReplyBuilder
from dragoman.dialects.anthropic import MessagesRenderOptions, MessagesWriter, no_signature
from dragoman.dialects.anthropic.hosted_tools import KINDS
from dragoman.dialects.interfaces import Header
from dragoman.dialects.json_encoding import replace_surrogates
from dragoman_check.rules import anthropic as grammar

from .anthropic_sdk import AnthropicSdk
from .sdk import write_stream
from .strategies import SERVER_TOOLS, Case, Kinds, arguments, cases

JsonObject = dict[str, Any]
HEADER = Header("msg_1", 1700000000, "org/model", "fp_1")


def is_consistent(case: Case) -> bool:
    return (case.reply.usage.reasoning or 0) <= (case.reply.usage.completion or 0)


def wrap(text: str, seal: str) -> str:
    return f"{seal} of {text}"


def sign_reasoning(thought: str) -> str:
    return f"signed {thought}"


# A message has one choice, and all of its tools take JSON.
one_answer = cases(Kinds(max_choices=1, custom=False)).filter(is_consistent)
views = st.builds(
    MessagesRenderOptions,
    omit_thinking=st.booleans(),
    sign=st.sampled_from((no_signature, sign_reasoning)),
    reports_edits=st.booleans(),
    wrap_seal=st.sampled_from((None, wrap)),
)
mcp_answer = cases(Kinds(max_choices=1, custom=False, server_tools=True)).filter(is_consistent)
NAMES = {kind: name for name, kind in KINDS.items()}
mcp_view = MessagesRenderOptions(
    server_tools={
        tool.qualified: replace(tool, hosted=NAMES.get(tool.hosted, "")) for tool in SERVER_TOOLS
    }
)
# Arguments that a model may write instead of JSON.
PIECES = (
    *'{}[]":, \n1-0a\\', ".5", "e3", "true", "nul", "null", "\\u", "d83d", "\\udc00", "\\ud83d",
    '\\"', "\\d",
    '{"a":', '"b":"x', 'x"', ',"c":[1,', "\x01", "é", "\ud800", "NaN", "😀",
)  # fmt: skip
scribble = st.lists(st.sampled_from(PIECES), max_size=9)
pieces = scribble | arguments.flatmap(
    lambda text: st.integers(0, len(text)).map(lambda cut: [text[:cut], text[cut:]])
) | arguments.flatmap(lambda text: st.integers(0, len(text)).map(lambda cut: ["",
text[:cut]]))  # fmt: skip
ends = st.sampled_from(
    (
        ChoiceFinished(0, FinishReason.STOP),
        ChoiceFinished(0, FinishReason.STOP, "END"),
        ChoiceFinished(0, FinishReason.LENGTH),
        ChoiceFinished(0, FinishReason.CONTEXT_LENGTH),
        ChoiceFinished(0, FinishReason.ABORT),
    )
)


@st.composite
def calls(draw: DrawFn) -> tuple[Event, ...]:
    """Draw calls with arbitrary arguments, with text between some of them."""
    events: list[Event] = [Started(1)]
    for i in range(draw(st.integers(1, 2))):
        events.append(ToolCallStart(0, f"call_{i}", "f"))
        events += [ToolCallDelta(0, piece) for piece in draw(pieces)]
        events += [TextDelta(0, text) for text in draw(st.sampled_from(((), ("",), ("x",))))]
    return (*events, draw(ends), Finished(Usage(1, 9)))


@pytest.fixture(scope="module")
def sdk() -> AnthropicSdk:
    return AnthropicSdk()


def whole_of(view: MessagesRenderOptions, events: tuple[Event, ...]) -> bytes:
    folded = ReplyBuilder()
    for event in events:
        folded.feed(event)
    return MessagesWriter(HEADER, view).render_full(folded.build())


def without_nulls(value: Any) -> Any:
    """Remove nulls: the SDK treats null and absent fields alike."""
    if isinstance(value, dict):
        fields = cast(JsonObject, value)
        return {key: without_nulls(item) for key, item in fields.items() if item is not None}
    return (
        [without_nulls(item) for item in cast(list[Any], value)]
        if isinstance(value, list)
        else value
    )


@given(one_answer, views)
def test_sdk_accumulates_stream_to_full_response(
    sdk: AnthropicSdk, case: Case, view: MessagesRenderOptions
):
    read = sdk.edited_message if view.reports_edits else sdk.message
    streamed = read(write_stream(MessagesWriter(HEADER, view), case.events)).to_json(warnings=False)
    full = MessagesWriter(HEADER, view).render_full(case.reply)
    assert without_nulls(json.loads(streamed)) == without_nulls(json.loads(full))


@given(mcp_answer)
def test_stream_of_mcp_tools_folds_to_full_message(sdk: AnthropicSdk, case: Case):
    data = write_stream(MessagesWriter(HEADER, mcp_view), case.events)
    grammar.check_stream(data)
    full = json.loads(MessagesWriter(HEADER, mcp_view).render_full(case.reply))
    grammar.check_object(full)
    BetaMessage.model_validate_json(json.dumps(full), strict=True)
    assert without_nulls(json.loads(sdk.edited_message(data).to_json(warnings=False))) == (
        without_nulls(full)
    )


@given(calls())
def test_sdk_accumulates_malformed_json_to_full_response(
    sdk: AnthropicSdk, events: tuple[Event, ...]
):
    streamed = sdk.message(write_stream(MessagesWriter(HEADER), events)).to_json(warnings=False)
    assert without_nulls(json.loads(streamed)) == without_nulls(
        json.loads(whole_of(MessagesRenderOptions(), events))
    )


@given(calls())
def test_finished_call_input_is_parsed_or_marked_invalid(events: tuple[Event, ...]):
    message = json.loads(whole_of(MessagesRenderOptions(), events))
    arguments = iter(list_arguments(events))
    for block in (
        message["content"] if message["stop_reason"] == "tool_use" else message["content"][:-1]
    ):
        if block["type"] == "tool_use":
            raw = replace_surrogates(next(arguments))
            input = block["input"]
            has_escapes = "\\" in raw  # some of which are mended
            assert input == parse_arguments(raw) or input.get("INVALID_JSON") == raw or has_escapes


def list_arguments(events: tuple[Event, ...]) -> list[str]:
    texts: list[str] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            texts.append("")
        elif isinstance(event, ToolCallDelta):
            texts[-1] += event.arguments
    return texts


def parse_arguments(raw: str) -> object:
    """Parse arguments; return None if they are not JSON."""
    try:
        return json.loads(raw.strip() or "{}", strict=False)
    except ValueError:
        return None


@given(one_answer, views)
def test_stream_and_full_response_follow_wire_grammar(case: Case, view: MessagesRenderOptions):
    grammar.check_stream(write_stream(MessagesWriter(HEADER, view), case.events))
    grammar.check_object(json.loads(MessagesWriter(HEADER, view).render_full(case.reply)))


@given(calls())
def test_tool_calls_follow_wire_grammar(events: tuple[Event, ...]):
    grammar.check_stream(write_stream(MessagesWriter(HEADER), events))
    grammar.check_object(json.loads(whole_of(MessagesRenderOptions(), events)))


@given(one_answer, views)
def test_objects_and_events_satisfy_sdk_types_strictly(case: Case, view: MessagesRenderOptions):
    BetaMessage.model_validate_json(
        MessagesWriter(HEADER, view).render_full(case.reply), strict=True
    )
    Message.model_validate_json(MessagesWriter(HEADER, view).render_full(case.reply), strict=True)
    any_event: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
    for event in grammar.check_stream(write_stream(MessagesWriter(HEADER, view), case.events)):
        any_event.validate_json(json.dumps(event), strict=True)


@given(one_answer)
def test_writer_output_contains_only_complete_events(case: Case):
    writer = MessagesWriter(HEADER)
    for event in case.events:
        output = writer.feed(event)
        assert not output or output.endswith(b"\n\n")


def test_empty_text_delta_ends_thinking_block():
    """Such text is still part of the answer: thinking after it is a new block, in both
    forms.
    """
    events: tuple[Event, ...] = (
        Started(1), ReasoningDelta(0, "a"), TextDelta(0, ""), ReasoningDelta(0, "b"),
        ChoiceFinished(0, FinishReason.STOP), Finished(Usage(1, 3)),
    )  # fmt: skip
    writer = MessagesWriter(HEADER)
    folded = ReplyBuilder()
    for event in events:
        folded.feed(event)
    stream = b"".join(map(writer.feed, events))
    full = json.loads(MessagesWriter(HEADER).render_full(folded.build()))
    assert stream.count(b"event: content_block_start") == len(full["content"]) == 2
