"""Recorded requests of real clients of Chat Completions and Completions, and the
responses that they need.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from dragoman.core.errors import EngineError
from dragoman.core.events import (
    Alternative,
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    ReasoningDelta,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from dragoman.core.request import SamplingOptions
from dragoman.dialects.interfaces import Header

from ..laws.sdk import OpenAiSdk
from .bodies import (
    HEADER,
    VLLM,
    chat,
    chat_request,
    completions,
    completions_request,
    conversation,
    render,
    render_full,
)

JsonObject = dict[str, Any]
HI = (Token(5, "Say", None), Token(6, " hi", -1.5, (Alternative(7, " so", -0.5),), rank=2))
PROMPT = PromptTokens(0, "Say hi", HI)
ANSWER: tuple[Event, ...] = (
    Started(2),
    PROMPT,
    TextDelta(0, "!", (Token(8, "!", -0.25, (Alternative(8, "!", -0.25),), rank=1),)),
    ChoiceFinished(0, FinishReason.LENGTH),
    Finished(Usage(2, 1)),
)


def choice(text: str) -> JsonObject:
    return json.loads(text)["choices"][0]


def test_sdk_raises_error_sent_mid_stream():
    """openai-python, LangChain, litellm and guidellm treat a truncated stream without
    an error as success.
    """
    writer = chat(stream=True).writer(HEADER)
    stream = (
        writer.feed(Started(1))
        + writer.feed(TextDelta(0, "x"))
        + writer.render_error(EngineError("The engine stopped."))
    )
    assert b"[DONE]" not in stream
    with pytest.raises(openai.APIError, match=r"The engine stopped\."):
        OpenAiSdk().chat(stream)
    with pytest.raises(openai.APIError, match=r"The engine stopped\."):
        OpenAiSdk().completions(
            completions().writer(HEADER).render_error(EngineError("The engine stopped."))
        )


def test_role_chunks_of_all_choices_come_first_in_order():
    """openai-python appends choices in order of arrival."""
    events = (Started(1, choices=3), TextDelta(2, "c"), TextDelta(0, "a"))
    sent = [
        json.loads(line.removeprefix("data: "))
        for line in render(chat(n=3), *events).split("\n\n")[:-1]
    ]
    assert [chunk["choices"][0]["index"] for chunk in sent] == [0, 1, 2, 2, 0]
    assert all(chunk["choices"][0]["delta"] == {"role": "assistant"} for chunk in sent[:3])


def test_last_chunk_has_usage_and_system_fingerprint():
    """The SDK's accumulator overwrites both with every chunk."""
    writer = chat(stream=True, stream_options={"include_usage": True}).writer(
        Header("i", 1, "m", "fp_7")
    )
    stream = b"".join(writer.feed(event) for event in ANSWER) + writer.end
    folded = OpenAiSdk().chat(stream)
    assert folded.system_fingerprint == "fp_7"
    assert folded.usage is not None
    assert folded.usage.completion_tokens == 1


def test_stream_has_only_data_events():
    """One unknown `event:` breaks openai-node and Vercel; comments are safe everywhere."""
    events = (
        Started(1),
        ReasoningDelta(0, "r"),
        ToolCallStart(0, "c", "f"),
        ToolCallDelta(0, "{}"),
    )
    for call in (chat(), chat(VLLM), completions()):
        lines = render(call, *events).split("\n\n")[:-1]
        assert all(line.startswith("data: {") for line in lines)
        assert call.writer(HEADER).keepalive == b": keepalive\n\n"
        assert call.writer(HEADER).end == b"data: [DONE]\n\n"


def test_empty_top_logprobs_is_rendered_as_array():
    (entry,) = choice(render_full(chat(logprobs=True), *ANSWER))["logprobs"]["content"]
    assert entry == {"token": "!", "logprob": -0.25, "bytes": [33], "top_logprobs": []}


def test_trl_completions_request_returns_ids_and_logprobs():
    """TRL's VLLMClient: token-id prompts in; ids, logprobs and "token_id:N" out."""
    call = completions(
        VLLM,
        prompt=[[5, 6]],
        return_token_ids=True,
        return_tokens_as_token_ids=True,
        logprobs=0,
        n=1,
        max_tokens=1,
    )
    assert call.requests[0].prompt == (5, 6)
    answer = choice(render_full(call, *ANSWER))
    assert answer["prompt_token_ids"] == [5, 6]
    assert answer["token_ids"] == [8]
    assert answer["logprobs"]["tokens"] == ["token_id:8"]
    assert answer["logprobs"]["token_logprobs"] == [-0.25]
    assert answer["logprobs"]["top_logprobs"] == [{"token_id:8": -0.25}]


def test_trl_chat_request_returns_ids_and_logprobs():
    call = chat(VLLM, return_token_ids=True, return_tokens_as_token_ids=True, logprobs=True)
    answer = json.loads(render_full(call, *ANSWER))
    assert answer["prompt_token_ids"] == [5, 6]
    assert answer["choices"][0]["token_ids"] == [8]
    assert answer["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:8"


def test_token_ids_are_returned_in_openai_profile_on_request():
    answer = json.loads(render_full(chat(return_token_ids=True), *ANSWER))
    assert (answer["prompt_token_ids"], answer["choices"][0]["token_ids"]) == ([5, 6], [8])
    assert "token_ids" not in choice(render_full(chat(), *ANSWER))


def test_prompt_logprobs_are_returned_for_scoring():
    expected = [
        None,
        {
            "6": {"logprob": -1.5, "rank": 2, "decoded_token": " hi"},
            "7": {"logprob": -0.5, "rank": 1, "decoded_token": " so"},
        },
    ]
    assert (
        choice(render_full(completions(prompt_logprobs=1), *ANSWER))["prompt_logprobs"] == expected
    )
    assert json.loads(render_full(chat(prompt_logprobs=1), *ANSWER))["prompt_logprobs"] == expected
    own = [None, {"6": {"logprob": -1.5, "rank": 2, "decoded_token": " hi"}}]
    assert choice(render_full(completions(prompt_logprobs=0), *ANSWER))["prompt_logprobs"] == own


def test_load_generator_fields_are_parsed():
    """aiperf, guidellm and vllm bench send these on every dialect."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    extra = {
        "ignore_eos": True,
        "min_tokens": 5,
        "max_tokens": 5,
        "stream": True,
        "stream_options": options,
    }
    for request in (chat_request(**extra), completions_request(**extra)):
        assert (
            request.limits.ignore_eos,
            request.limits.min_tokens,
            request.limits.max_tokens,
        ) == (True, 5, 5)
    assert (
        render(chat(**extra), *ANSWER[:1]).count('"usage":{"prompt_tokens":2,"completion_tokens":0')
        == 1
    )
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]
    assert len(conversation(messages=parts).messages[0].parts) == 2


def test_lm_eval_echo_request_returns_prompt_logprobs():
    """It slices token_logprobs[ctxlen:-1] and compares token_logprob ==
    max(top_logprobs.values()), as floats.
    """
    call = completions(prompt=[[5, 6]], echo=True, logprobs=1, max_tokens=1)
    logprobs = choice(render_full(call, *ANSWER))["logprobs"]
    assert logprobs["token_logprobs"] == [None, -1.5, -0.25]
    assert logprobs["token_logprobs"][1:-1] == [-1.5]
    greedy = [
        score == max(top.values())
        for score, top in zip(
            logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
        )
    ]
    assert greedy == [False, True]
    assert choice(render_full(call, *ANSWER))["text"] == "Say hi!"


def test_echo_stream_equals_full_response():
    call = completions(prompt=[[5, 6]], echo=True, logprobs=1, max_tokens=1, stream=True)
    sent = [
        json.loads(line.removeprefix("data: ")) for line in render(call, *ANSWER).split("\n\n")[:-1]
    ]
    assert "".join(chunk["choices"][0]["text"] for chunk in sent) == "Say hi!"
    scores = [
        score for chunk in sent for score in chunk["choices"][0]["logprobs"]["token_logprobs"]
    ]
    assert scores == [None, -1.5, -0.25]


def test_langchain_null_fields_are_ignored():
    fields = {
        "logprobs": None,
        "seed": None,
        "n": None,
        "stop": None,
        "user": None,
        "max_tokens": None,
    }
    assert chat_request(**fields).sampling == SamplingOptions()
    assert completions_request(**fields).limits.max_tokens == 16


def test_large_max_tokens_is_not_reduced_by_reader():
    """Agents request 32,000 tokens of models with fewer: the limit is reduced later,
    never rejected.
    """
    assert chat_request(max_tokens=32_000).limits.max_tokens == 32_000
