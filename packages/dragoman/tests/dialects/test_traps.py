"""Incompatibilities with real clients, each with its bug reports.

Only those of the readers and writers of Chat Completions and Completions; the others
are tested elsewhere.
"""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from msgspec.structs import replace

from dragoman.core.errors import ContextTooLong, RequestError
from dragoman.core.events import (
    Alternative,
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from dragoman.core.message import Message, Reasoning, Role, Text, ToolResult
from dragoman.core.request import AnyJsonObject
from dragoman.dialects.chat import read_chat
from dragoman.dialects.interfaces import GenerationCall, Header, Profile
from dragoman.dialects.openai_errors import render_openai_error

from .bodies import (
    HELLO,
    OPTIONS,
    WEATHER,
    chat,
    chat_refusal,
    chat_request,
    completions,
    conversation,
    render,
    render_full,
)

JsonObject = dict[str, Any]
STOP = ChoiceFinished(0, FinishReason.STOP)
LENGTH = ChoiceFinished(0, FinishReason.LENGTH)
DONE = Finished(Usage(1, 2))
VLLM = replace(OPTIONS, profile=Profile.VLLM)
CALLS: tuple[Event, ...] = (
    Started(1),
    ToolCallStart(0, "c1", "f"),
    ToolCallDelta(0, '{"a":'),
    ToolCallDelta(0, "1}"),
    ToolCallStart(0, "c2", "g"),
    ToolCallDelta(0, "{}"),
)


def chunks(call: GenerationCall, *events: Event) -> list[JsonObject]:
    return [
        json.loads(line.removeprefix("data: ")) for line in render(call, *events).split("\n\n")[:-1]
    ]


def deltas(call: GenerationCall, *events: Event) -> list[JsonObject]:
    return [choice["delta"] for chunk in chunks(call, *events) for choice in chunk["choices"]]


def reasons(call: GenerationCall, *events: Event) -> tuple[str, str]:
    """Return the finish reason of the stream and of the object."""
    last = [chunk for chunk in chunks(call, *events) if chunk["choices"]][-1]
    return last["choices"][0]["finish_reason"], json.loads(render_full(call, *events))["choices"][
        0
    ]["finish_reason"]


def test_hosted_tools_are_skipped_with_warning():
    """llama.cpp#20156, #23465: one unknown tool was a 400 for the whole request."""
    hosted = [
        {"type": "web_search"},
        {"type": "tool_search", "x": 1},
        {"type": "mcp", "server_label": "s"},
    ]
    call = chat(tools=[*hosted, WEATHER])
    assert [tool.name for tool in conversation(tools=[*hosted, WEATHER]).tools] == ["weather"]
    assert len(call.warnings) == 3
    assert "web_search" in call.warnings[0]


def test_custom_tools_are_parsed():
    assert [
        tool.name
        for tool in conversation(tools=[{"type": "custom", "custom": {"name": "sh"}}]).tools
    ] == ["sh"]


def test_tool_content_accepts_list_of_parts():
    """llama.cpp#23465"""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = conversation(
        messages=[*HELLO, {"role": "tool", "tool_call_id": "c", "content": parts}]
    ).messages[-1]
    assert message.parts == (ToolResult("c", (Text("a"), Text("b"))),)


def test_developer_role_is_preserved():
    """llama.cpp#20079, ogx-ai/ogx#6069: some templates reject the role, so it is mapped
    when the prompt is rendered.
    """
    read = conversation(messages=[{"role": "developer", "content": "x"}, *HELLO])
    assert read.messages[0] == Message(Role.DEVELOPER, (Text("x"),))


def test_reasoning_is_rendered_under_both_names():
    """vllm#27755, #42664, litellm#26501, dify-official-plugins#2740: each client reads
    one of them.
    """
    (delta,) = [d for d in deltas(chat(), Started(1), ReasoningDelta(0, "hm")) if "role" not in d]
    assert delta == {"reasoning": "hm", "reasoning_content": "hm"}
    message = json.loads(render_full(chat(), Started(1), ReasoningDelta(0, "hm"), STOP, DONE))[
        "choices"
    ][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "hm"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_parsed_under_both_names(name: str):
    read = conversation(
        messages=[*HELLO, {"role": "assistant", "content": "a", name: "hm"}, *HELLO]
    )
    assert read.messages[1].parts == (Reasoning("hm"), Text("a"))


def test_reasoning_under_both_names_is_merged():
    both = {"role": "assistant", "content": "a", "reasoning": "hm", "reasoning_content": "hm"}
    assert conversation(messages=[both]).messages[0].parts == (Reasoning("hm"), Text("a"))


def test_tool_call_deltas_have_index():
    """ollama#7881, openai-python#3246, mistral.rs#1507"""
    calls = [call for delta in deltas(chat(), *CALLS) for call in delta.get("tool_calls", [])]
    assert all(isinstance(call["index"], int) for call in calls)


def test_parallel_calls_have_separate_indices():
    """litellm#33678, vercel/ai#14277: all calls were number 0."""
    calls = [call for delta in deltas(chat(), *CALLS) for call in delta.get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 0, 0, 1, 1]


def test_call_id_type_and_name_are_sent_once():
    """lmstudio-bug-tracker#649, sglang#4700: a repeated name is doubled by
    openai-python.
    """
    calls = [call for delta in deltas(chat(), *CALLS) for call in delta.get("tool_calls", [])]
    first, *later = calls[:3]
    assert first == {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": ""},
    }
    assert later == [
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 0, "function": {"arguments": "1}"}},
    ]


def test_tool_calls_set_finish_reason():
    """mlx-lm#782, mlx-vlm#990, vllm#53269, vllm#53255, vllm#25054"""
    named = chat(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "weather"}})
    assert reasons(chat(), *CALLS, STOP, DONE) == ("tool_calls", "tool_calls")
    assert reasons(chat(), *CALLS, LENGTH, DONE) == ("length", "length")
    assert reasons(named, *CALLS, STOP, DONE) == ("stop", "stop")
    assert reasons(chat(tools=[WEATHER]), Started(1), TextDelta(0, "x"), STOP, DONE) == (
        "stop",
        "stop",
    )


def test_message_without_calls_has_no_tool_calls_field():
    """vllm#53255: an empty list beside finish_reason tool_calls."""
    answer = json.loads(
        render_full(chat(tools=[WEATHER]), Started(1), TextDelta(0, "x"), STOP, DONE)
    )
    assert "tool_calls" not in answer["choices"][0]["message"]


def test_tool_call_cut_at_max_tokens_finishes_with_length():
    """mlx-lm#905: max_tokens inside a tool call dropped the connection."""
    text = render(
        chat(), Started(1), ToolCallStart(0, "c", "f"), ToolCallDelta(0, '{"a'), LENGTH, DONE
    )
    assert '"finish_reason":"length"' in text
    message = json.loads(
        render_full(
            chat(), Started(1), ToolCallStart(0, "c", "f"), ToolCallDelta(0, '{"a'), LENGTH, DONE
        )
    )
    assert message["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"a'


THOUGHT = (
    Started(1),
    ReasoningDelta(0, ".", (Token(1, ".\n", -1.0),)),
    TextDelta(
        0,
        "Yes",
        (
            Token(2, "</think>", -1.0, special=True, markup=True),
            Token(3, "\n\n", -1.0, markup=True),
            Token(4, "Yes", -1.0),
        ),
    ),
    ChoiceFinished(0, FinishReason.STOP, None, (Token(5, "<|im_end|>", -1.0, special=True),)),
    DONE,
)


def test_logprobs_cover_content_tokens_in_openai_profile():
    """OpenAI's "message content tokens"; vLLM lists reasoning, delimiters and the end
    token too.
    """
    for call, listed in (
        (chat(logprobs=True), ["Yes"]),
        (chat(VLLM, logprobs=True), [".\n", "</think>", "\n\n", "Yes", "<|im_end|>"]),
    ):
        entries = json.loads(render_full(call, *THOUGHT))["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in entries] == listed
        scores = [
            choice["logprobs"] for chunk in chunks(call, *THOUGHT) for choice in chunk["choices"]
        ]
        assert [entry["token"] for each in scores if each for entry in each["content"]] == listed


def test_vllm_profile_top_logprobs_start_with_sampled_token():
    """vLLM's users read `next(iter(top_logprobs[i]))`."""
    sampled = Token(1, " hel", -12.4, (Alternative(2, "Once", -1.9),))
    events = (Started(1), TextDelta(0, " hel", (sampled,)), STOP, DONE)
    for options, best in ((VLLM, " hel"), (OPTIONS, "Once")):
        call = completions(options, logprobs=1)
        (alternatives,) = json.loads(render_full(call, *events))["choices"][0]["logprobs"][
            "top_logprobs"
        ]
        assert next(iter(alternatives)) == best
        assert alternatives == {"Once": -1.9, " hel": -12.4}


def test_deltas_contain_no_null():
    """vercel/ai#2548, sglang#18335: role null, content null, finish_reason "None"."""
    events = (*CALLS, TextDelta(0, "x"), ReasoningDelta(0, "y"), STOP, DONE)
    for profile_call in (
        chat(),
        chat(logprobs=True, stream=True, stream_options={"include_usage": True}),
    ):
        assert all(
            value is not None for delta in deltas(profile_call, *events) for value in delta.values()
        )
        reasons = [
            choice["finish_reason"]
            for chunk in chunks(profile_call, *events)
            for choice in chunk["choices"]
        ]
        assert set(reasons) == {None, "tool_calls"}


def test_usage_chunk_is_last_and_only_when_requested():
    """vercel/ai#7417, litellm#28735 (LangChain.js doubles tokens), apfel#100,
    cline#8518
    """
    events = (Started(1), TextDelta(0, "x"), STOP, DONE)
    stream = chunks(chat(stream=True, stream_options={"include_usage": True}), *events)
    assert stream[-1]["choices"] == []
    assert stream[-1]["usage"]["total_tokens"] == 3
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in stream[:-1])
    assert all(
        "usage" not in chunk and chunk["choices"] for chunk in chunks(chat(stream=True), *events)
    )


def test_object_field_has_correct_name():
    """mlx-examples#1119: aider reported a token limit."""
    events = (Started(1), TextDelta(0, "x"), STOP, DONE)
    assert {chunk["object"] for chunk in chunks(chat(), *events)} == {"chat.completion.chunk"}
    assert json.loads(render_full(chat(), *events))["object"] == "chat.completion"
    assert {chunk["object"] for chunk in chunks(completions(), *events)} == {"text_completion"}
    assert json.loads(render_full(completions(), *events))["object"] == "text_completion"


@pytest.mark.parametrize("call", [chat(), completions()], ids=["chat", "completions"])
def test_response_has_id_created_and_usage(call: GenerationCall):
    """zed#34513, #54804, #42893"""
    events = (Started(1), TextDelta(0, "x"), STOP, DONE)
    for answer in (*chunks(call, *events), json.loads(render_full(call, *events))):
        assert (answer["id"], answer["created"], answer["model"]) == (
            "chatcmpl-1",
            1700000000,
            "tiny",
        )
    usage = cast(JsonObject, json.loads(render_full(call, *events))["usage"])
    assert [usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")] == [
        1,
        2,
        3,
    ]


def test_responses_body_is_rejected_with_route_hint():
    """CLIProxyAPI#658, codex-lb#833: Cursor posts `input` to /v1/chat/completions."""

    with pytest.raises(RequestError, match=r"/v1/responses") as caught:
        read_chat(b'{"model":"m","input":[{"role":"user","content":"x"}],"stream":true}', OPTIONS)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("profile", Profile)
def test_context_overflow_message_matches_client_pattern(profile: Profile):
    """earendil-works/pi#5930, TensorRT-LLM#19457, harbor#996: clients match these words
    to compact their history.
    """
    body = render_openai_error(
        ContextTooLong(limit=1024, prompt=2000, param="messages"), profile
    ).decode()
    assert (
        "This model's maximum context length is 1024 tokens. However, your prompt has 2000 tokens"
        in body
    )
    assert ("context_length_exceeded" in body) == (profile is Profile.OPENAI)


def test_keepalive_is_comment():
    """antirez/ds4#151, vllm#47647: clients gave up on a stream that was silent until
    its prefill was over.
    """
    assert chat(stream=True).writer(Header("chatcmpl-1", 0, "m")).keepalive.startswith(b":")


def test_structured_output_and_tools_are_combined():
    """vllm#16313"""
    assert (
        chat_request(tools=[WEATHER], response_format={"type": "json_object"}).constraint
        == AnyJsonObject()
    )


def test_unsupported_options_are_rejected_by_name():
    """An unsupported option that was requested is a 400 that names it."""
    assert chat_refusal(modalities=["text", "audio"]).param == "modalities"
    assert chat_refusal(web_search_options={}).param == "web_search_options"
    assert chat_refusal(moderation={}).param == "moderation"
