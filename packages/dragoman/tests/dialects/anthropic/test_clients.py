"""Requests of real clients of Messages, recorded from them, and the responses that they
need.
"""

from __future__ import annotations

import anthropic
import httpx2
import pytest
from anthropic import beta_tool
from anthropic.types import ModelInfo
from pydantic import BaseModel

from dragoman.core.errors import EngineError
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
from dragoman.core.message import Message, Reasoning, Role, Text
from dragoman.dialects.interfaces import Profile
from dragoman.dialects.model_list import ModelCard, render_model, render_model_list
from dragoman_check.rules.anthropic import check_stream

from ...laws.anthropic_sdk import AnthropicSdk, client
from ..bodies import HEADER, render
from .bodies import HELLO, JsonObject, conversation, messages, request
from .serving import Served

STOP = ChoiceFinished(0, FinishReason.STOP)
DONE = Finished(Usage(5, 3))


def build_events(text: str) -> tuple[Event, ...]:
    return (Started(5), TextDelta(0, text), STOP, DONE)


@beta_tool
def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: Where.
    """
    return f"sunny in {city}"


def reporter(history: tuple[Message, ...]) -> tuple[Event, ...]:
    """A scripted model that calls the tool once, then repeats its result."""
    if history[-1].role is not Role.TOOL:
        call = (
            ToolCallStart(0, "call_1", "weather"),
            ToolCallDelta(0, '{"city": "Par'),
            ToolCallDelta(0, 'is"}'),
        )
        return (Started(5), *call, STOP, DONE)
    return build_events("It is sunny.")


@pytest.mark.parametrize("stream", [False, True])
def test_sdk_tool_runner_replays_history_without_thread(stream: bool):
    """It uses threads by default; a server that ignored them would lose the history."""
    served = Served(reporter)
    runner = served.sdk.beta.messages.tool_runner(
        model="m",
        max_tokens=50,
        tools=[weather],
        messages=[{"role": "user", "content": "weather?"}],
        stream=stream,
    )
    last = runner.until_done()
    assert [block.text for block in last.content if block.type == "text"] == ["It is sunny."]
    assert ["thread" in body for body in served.bodies] == [True, False, False]
    assert served.bodies[-1]["messages"][-1]["content"][0]["content"] == "sunny in Paris"


def test_sdk_parse_returns_structured_output():
    class City(BaseModel):
        name: str

    served = Served(lambda _: build_events('{"name": "Paris"}'))
    parsed = served.sdk.messages.parse(
        model="m",
        max_tokens=50,
        messages=[{"role": "user", "content": "where?"}],
        output_format=City,
    )
    assert parsed.parsed_output == City(name="Paris")
    assert served.bodies[0]["output_config"]["format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    "card", [ModelCard("org/tiny", 1700000000, max_model_len=1024), ModelCard("x", 1)]
)
@pytest.mark.parametrize("profile", Profile)
def test_sdk_validates_models_strictly(card: ModelCard, profile: Profile):
    model = ModelInfo.model_validate_json(render_model(card, profile), strict=True)
    assert (model.id, model.created_at.timestamp(), model.max_input_tokens) == (
        card.id,
        card.created,
        card.max_model_len,
    )
    sdk = client(lambda _: httpx2.Response(200, content=render_model_list([card], profile)))
    assert [listed.id for listed in sdk.models.list()] == [card.id]


def test_sdk_raises_error_sent_mid_stream():
    writer = messages(stream=True).writer(HEADER)
    stream = (
        writer.feed(Started(1))
        + writer.feed(TextDelta(0, "x"))
        + writer.render_error(EngineError("The engine stopped."))
    )
    check_stream(stream)
    with pytest.raises(anthropic.APIStatusError, match=r"The engine stopped\."):
        AnthropicSdk().message(stream)


def test_stream_with_error_as_first_event_is_valid():
    writer = messages(stream=True).writer(HEADER)
    check_stream(writer.keepalive + writer.render_error(EngineError("x")))


def test_stream_has_only_standard_event_names():
    """One unknown event breaks Vercel's provider."""
    stream = render(messages(), *build_events("x"))
    names = [
        line.removeprefix("event: ") for line in stream.split("\n") if line.startswith("event: ")
    ]
    of_the_block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert names == ["message_start", *of_the_block, "message_delta", "message_stop"]
    assert "[DONE]" not in stream


def test_stream_events_and_pings_have_names():
    """The official SDKs drop an event without one."""
    writer = messages().writer(HEADER)
    stream = (
        writer.feed(Started(1))
        + writer.keepalive
        + b"".join(writer.feed(event) for event in build_events("x")[1:])
    )
    assert [event["type"] for event in check_stream(stream)][:2] == [
        "message_start",
        "content_block_start",
    ]
    assert AnthropicSdk().message(stream).content[0].type == "text"


def test_usage_is_in_message_start_and_message_delta():
    events = check_stream(render(messages(), *build_events("x")).encode())
    assert events[0]["message"]["usage"]["input_tokens"] == 5
    assert events[-2]["usage"]["output_tokens"] == 3


def test_usage_counts_cached_tokens_separately():
    """As in vLLM's test: the counts of message_start add up to the prompt."""
    events = check_stream(
        render(messages(), Started(10, 4), STOP, Finished(Usage(10, 1, 4))).encode()
    )
    for usage in (events[0]["message"]["usage"], events[-2]["usage"]):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (6, 4)
        assert usage["cache_creation_input_tokens"] is None
    started = Started(10, 4, written_tokens=2)
    events = check_stream(
        render(messages(), started, STOP, Finished(Usage(10, 1, 4, written=2))).encode()
    )
    for usage in (events[0]["message"]["usage"], events[-2]["usage"]):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (4, 4)
        assert usage["cache_creation_input_tokens"] == 2


def test_load_generator_fields_give_no_warning():
    assert (
        messages(ignore_eos=True, min_tokens=5, stream_options={"include_usage": True}).warnings
        == ()
    )


def test_large_max_tokens_is_not_reduced_by_reader():
    assert request(max_tokens=32_000).limits.max_tokens == 32_000


def test_thinking_with_or_without_signature_is_replayed():
    """pi and opencode replay the signature; trap 19 is about a server that sent an
    empty one.
    """
    for more in ({"signature": "s"}, {"signature": ""}, {}):
        thought: JsonObject = {"type": "thinking", "thinking": "Hm.", **more}
        request = conversation(
            messages=[
                *HELLO,
                {"role": "assistant", "content": [thought, {"type": "text", "text": "x"}]},
            ]
        )
        assert request.messages[-1].parts == (Reasoning("Hm."), Text("x"))


def test_omitted_thinking_is_signed():
    """Claude Code's default. Keepalives are sent meanwhile."""
    call = messages(thinking={"type": "adaptive", "display": "omitted"})
    events = check_stream(
        render(call, Started(1), ReasoningDelta(0, "Hm."), TextDelta(0, "x"), STOP, DONE).encode()
    )
    assert [
        event["delta"]["type"] for event in events if event["type"] == "content_block_delta"
    ] == [
        "signature_delta",
        "text_delta",
    ]


CLAUDE_CODE: JsonObject = {
    "model": "tiny",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is Friday.\n</system-reminder>"},
                {"type": "text", "text": "Say hello", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "system", "content": "Answer in one line."},
    ],
    "system": [
        {
            "type": "text",
            "text": "x-anthropic-billing-header: cc_version=2.1.329.0d9; cc_entrypoint=cli; "
            "cch=8a3f1;",
        },
        {
            "type": "text",
            "text": "You are a Claude agent.",
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        },
        {
            "type": "text",
            "text": "Be concise.",
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        },
    ],
    "tools": [
        {
            "name": "Bash",
            "description": "Runs.",
            "input_schema": {"type": "object"},
            "eager_input_streaming": True,
        },
        {
            "name": "WebFetch",
            "description": "Fetches.",
            "input_schema": {"type": "object"},
            "defer_loading": True,
        },
    ],
    "metadata": {"user_id": '{"device_id":"1","account_uuid":"","session_id":"2"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}


def test_claude_code_request_gives_no_warning():
    call = messages(**CLAUDE_CODE)
    assert (call.stream, call.warnings, call.unknown) == (True, (), ())
    request = conversation(**CLAUDE_CODE)
    assert [message.role for message in request.messages] == [Role.SYSTEM, Role.USER, Role.SYSTEM]
    assert [tool.name for tool in request.tools] == ["Bash", "WebFetch"]
    assert (request.reasoning.enabled, request.reasoning.effort) == (True, "high")
    assert request.template.add_generation_prompt
