"""Fields of a Responses body, other than items and tools, are parsed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response

from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    Usage,
)
from dragoman.core.request import AnyJsonObject, JsonSchema, ReasoningOptions, StringChoices
from dragoman.dialects.interfaces import ReaderOptions
from dragoman.dialects.responses import Echo, assign_ids, read_responses
from dragoman.dialects.responses.input_items import read_stored_items
from dragoman_check.rules.responses import check_object

from ..sealing_key import ReadableSealingKey
from .bodies import (
    AGENTS,
    HEADER,
    OPTIONS,
    WEATHER,
    call,
    conversation,
    events,
    read_error,
    render_full,
    request,
    responses,
    with_rows,
)

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "number", "minimum": 1.0}}}
FORMAT: dict[str, Any] = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
RUN: dict[str, Any] = {"type": "custom", "name": "run", "description": "d"}
HI: tuple[Event, ...] = (
    Started(5),
    TextDelta(0, "hi"),
    ChoiceFinished(0, FinishReason.STOP),
    Finished(Usage(5, 2)),
)
THOUGHT: tuple[Event, ...] = (HI[0], ReasoningDelta(0, "hm"), *HI[1:])


def test_null_fields_equal_absent_fields():
    """llama-index sends null for everything that was not set."""
    nulls = {row: None for row in ("instructions", "include", "max_output_tokens", "metadata",
    "user", "tools",
             "previous_response_id", "store", "stream", "text", "reasoning", "tool_choice",
             "temperature", "top_p",
             "truncation", "conversation", "background", "service_tier", "stream_options", "seed",
             "stop")}  # fmt: skip
    assert responses(**nulls).call.requests == responses().call.requests
    assert responses(**nulls).echo == responses().echo
    assert call(**nulls).warnings == ()


def test_max_output_tokens_has_no_default():
    """Codex fails the turn at response.incomplete."""
    assert request().limits.max_tokens is None
    assert request(max_output_tokens=-1).limits.max_tokens is None
    assert request(max_output_tokens=3).limits.max_tokens == 3
    assert read_error(max_output_tokens=0).param == "max_output_tokens"


def test_decoding_fields_are_parsed():
    parsed = request(
        temperature=0,
        top_p=0.5,
        ignore_eos=True,
        min_tokens=2,
        stop="x",
        seed=7,
        cache_salt="s",
        top_k=3,
    )
    assert (
        parsed.sampling.temperature,
        parsed.sampling.top_p,
        parsed.sampling.seed,
        parsed.sampling.top_k,
    ) == (
        0,
        0.5,
        7,
        3,
    )
    assert (parsed.limits.ignore_eos, parsed.limits.min_tokens, parsed.limits.stop) == (
        True,
        2,
        ("x",),
    )
    assert parsed.cache_salt == "s"


def test_text_format_is_parsed():
    assert request(text={"format": {"type": "text"}}).constraint is None
    assert request(text={"format": {"type": "json_object"}}).constraint == AnyJsonObject()
    wanted = JsonSchema(msgspec.json.encode(SCHEMA).decode(), strict=True, name="answer")
    assert request(text={"format": FORMAT}).constraint == wanted
    assert request(structured_outputs={"choice": ["a", "b"]}).constraint == StringChoices(
        ("a", "b")
    )
    assert (
        read_error(text={"format": {"type": "json_schema", "name": "x"}}).param
        == "text.format.schema"
    )
    assert read_error(text={"format": {"type": "xml"}}).param == "text.format.type"
    assert read_error(text={"format": FORMAT}, guided_regex="a").param == "guided_regex"


def test_reasoning_fields_are_parsed():
    assert conversation(reasoning={"effort": "high"}).reasoning == ReasoningOptions(None, "high")
    assert conversation(reasoning={"effort": "none"}).reasoning == ReasoningOptions(False, "none")
    assert conversation(chat_template_kwargs={"enable_thinking": True}).reasoning.enabled is True
    assert conversation(thinking_token_budget=5).reasoning.budget == 5
    assert read_error(reasoning={"effort": "extreme"}).param == "reasoning.effort"
    assert read_error(reasoning={"summary": "long"}).param == "reasoning.summary"


@pytest.mark.parametrize("field", ["summary", "generate_summary"])
def test_reasoning_summary_is_streamed_when_requested(field: str):
    kinds = {event["type"] for event in events(call(reasoning={field: "auto"}), *THOUGHT)}
    assert "response.reasoning_summary_text.delta" in kinds
    assert "response.reasoning_text.delta" not in kinds
    assert "response.reasoning_text.delta" in {event["type"] for event in events(call(), *THOUGHT)}


def test_include_reasoning_false_omits_reasoning_item():
    assert [
        item["type"] for item in render_full(call(include_reasoning=False), *THOUGHT)["output"]
    ] == ["message"]


def test_encrypted_reasoning_is_included_with_key():
    body: dict[str, Any] = {"input": "x", "include": ["reasoning.encrypted_content"]}
    parsed = read_responses(
        json.dumps(body).encode(),
        msgspec.structs.replace(OPTIONS, sealing_key=ReadableSealingKey()),
    )
    assert render_full(parsed.call, *THOUGHT)["output"][0]["encrypted_content"] == "reasoning:hm"
    assert parsed.call.warnings == ()
    (warning,) = call(include=body["include"]).warnings
    assert "no key" in warning
    assert (
        "encrypted_content" not in render_full(call(include=body["include"]), *THOUGHT)["output"][0]
    )


def test_logprobs_fields_are_parsed():
    assert request().logprobs is None
    assert request(top_logprobs=0).logprobs is None
    assert request(top_logprobs=3).logprobs == 3
    assert request(include=["message.output_text.logprobs"]).logprobs == 0
    assert request(include=["message.output_text.logprobs"], top_logprobs=2).logprobs == 2
    assert read_error(top_logprobs=21).param == "top_logprobs"


def test_unknown_include_value_gives_warning():
    assert call(include=["file_search_call.results"]).warnings == ()
    assert call(include=["tea"]).warnings == ("include: 'tea' is not supported",)


def test_response_echoes_request_fields():
    echoed: dict[str, Any] = {
        "instructions": "be\u2028brief", "max_output_tokens": 9, "max_tool_calls": 2,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"}, "safety_identifier": "s",
        "temperature": 0.0, "top_p": 0.25,
        "text": {"format": {**FORMAT, "description": None}, "verbosity": "low"}, "top_logprobs": 2,
        "truncation": "auto", "user": "u", "previous_response_id": "resp_0", "store": True,
        "background": True,
    }  # fmt: skip
    response = render_full(call(**echoed), *HI)
    assert {key: response[key] for key in echoed} == echoed
    assert response["service_tier"] == "default"
    assert render_full(call(conversation={"id": "conv_1"}), *HI)["conversation"] == {"id": "conv_1"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"text": {"format": FORMAT}, "reasoning": {"effort": "max", "summary": "detailed"},
        "user": "u"},
        {"text": {"format": {"type": "json_object"}}, "tools": [WEATHER, RUN, AGENTS],
        "tool_choice": "required"},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"},
        "conversation": "c"},
        {"tools": [RUN], "tool_choice": {"type": "custom", "name": "run"}, "metadata": {"a": "b"}},
        {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "weather"}]}, "previous_response_id": "r",
            "max_tool_calls": 1},
    ],
)  # fmt: skip
def test_echoed_response_validates_against_sdk_types(fields: dict[str, Any]):
    response = render_full(call(**fields), *HI)
    check_object(response)
    Response.model_validate_json(json.dumps(response), strict=True)


def test_partially_supported_fields_give_warnings():
    parsed = call(
        service_tier="priority",
        text={"verbosity": "high"},
        reasoning={"mode": "pro", "context": "all_turns"},
        context_management=[{"type": "compaction"}],
    )
    assert len(parsed.warnings) == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"truncation": "some"}, "truncation"),
        ({"text": {"verbosity": "x"}}, "text.verbosity"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a" * 65: ""}}, "metadata"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "a", "conversation": "b"}, "previous_response_id"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"prompt": {"id": "p"}, "input": None}, "prompt"),
        ({"temperature": 3}, "temperature"),
    ],
)
def test_invalid_field_error_names_param(fields: dict[str, Any], param: str):
    error = read_error(**fields)
    assert error.param is not None
    assert error.param.startswith(param)


def test_chat_body_is_rejected_with_route_hint():
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    with pytest.raises(Exception, match="/v1/chat/completions"):
        read_responses(body, OPTIONS)


def test_missing_model_without_default_is_rejected():
    assert read_error(ReaderOptions()).param == "model"


def test_store_field_is_parsed_and_echoed():
    for store in (None, True, False):
        parsed = responses(**({} if store is None else {"store": store}))
        assert parsed.store is store
        assert render_full(parsed.call, *HI)["store"] is (store is not False)


def test_previous_items_are_prepended_to_input():
    parsed = responses(
        previous_response_id="resp_0", instructions="new", input=[{"role": "user", "content": "b"}]
    )
    assert (parsed.previous_response_id, parsed.conversation, parsed.background) == (
        "resp_0",
        None,
        False,
    )
    own = [row for _, row in assign_ids(parsed.input, "resp_1")]
    earlier = [
        b'{"id":"msg_0","type":"message","role":"user","content":[{"type":"input_text","text":"a"}]}'
    ]
    together = responses(
        instructions="new", input=[{"role": "user", "content": text} for text in "ab"]
    )
    assert with_rows(parsed, *earlier, *own).call.requests == together.call.requests
    assert (
        parsed.with_history(read_stored_items(earlier), parsed.input).call.requests
        == together.call.requests
    )


def test_with_echo_replaces_echoed_fields():
    parsed = responses().with_echo(
        Echo(rest=responses().echo.rest, store=False, previous_response_id="resp_0")
    )
    response = render_full(parsed.call, *HI)
    assert (response["store"], response["previous_response_id"], response["id"]) == (
        False,
        "resp_0",
        "resp_1",
    )


def test_request_id_sets_response_id():
    writer = call(request_id="mine").writer(HEADER)
    assert b'"id":"resp_mine"' in writer.feed(Started(1))


def test_completed_at_is_set_with_clock():
    parsed = read_responses(b'{"input":"x"}', OPTIONS, now=lambda: 17)
    assert render_full(parsed.call, *HI)["completed_at"] == 17
    assert [event["response"]["completed_at"] for event in events(parsed.call, *HI)[:2]] == [
        None,
        None,
    ]


def test_conversation_with_store_false_gives_warning():
    assert any(
        "store is false" in warning
        for warning in responses(conversation="conv_1", store=False).call.warnings
    )
    assert not any("store" in warning for warning in responses(conversation="conv_1").call.warnings)
