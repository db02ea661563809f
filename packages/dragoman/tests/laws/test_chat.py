"""Chat Completions: the official SDK accumulates our stream to our full response."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

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
from dragoman.core.reply import ReplyBuilder
from dragoman.dialects.chat import ChatRenderOptions, ChatWriter
from dragoman.dialects.interfaces import Header, Profile
from dragoman_check.rules import chat as grammar
from dragoman_check.rules.json_values import require_object, require_objects

from .sdk import OpenAiSdk, write_stream
from .strategies import OPENAI_REASONS, Case, Kinds, cases

JsonObject = dict[str, Any]
HEADER = Header("chatcmpl-1", 1700000000, "org/model", "fp_1")
FUNCTIONS_ONLY = Kinds(custom=False, reasons=OPENAI_REASONS)
views = st.builds(
    ChatRenderOptions,
    profile=st.sampled_from(Profile),
    logprobs=st.sampled_from((None, 0, 1)),
    token_ids=st.booleans(),
    tokens_as_ids=st.booleans(),
    include_usage=st.booleans(),
    continuous_usage=st.booleans(),
    service_tier=st.booleans(),
    weight_versions=st.booleans(),
    prompt_text=st.booleans(),
    reasoning_fields=st.sampled_from(((), ("reasoning",), ("reasoning", "reasoning_content"))),
    is_named_choice=st.booleans(),
    legacy_functions=st.sampled_from((False, False, False, True)),
)


@pytest.fixture(scope="module")
def sdk() -> OpenAiSdk:
    return OpenAiSdk()


@given(cases(), views)
def test_sdk_accumulates_stream_to_full_response(
    sdk: OpenAiSdk, case: Case, view: ChatRenderOptions
):
    streamed = sdk.chat(write_stream(ChatWriter(HEADER, view), case.events)).to_json(warnings=False)
    full = ChatWriter(HEADER, view).render_full(case.reply)
    if view.profile is Profile.OPENAI:
        contents = [
            [each["message"]["content"] for each in json.loads(one)["choices"]]
            for one in (streamed, full)
        ]
        assert contents[0] == contents[1]
    assert normal(json.loads(streamed), view) == normal(json.loads(full), view)


def normal(full: JsonObject, view: ChatRenderOptions) -> JsonObject:
    """Remove differences that the format causes: nulls, the index of calls, and fields
    that the SDK parses.
    """
    if not view.include_usage:
        full.pop("usage")
    for key in ("prompt_logprobs", "kv_transfer_params"):
        full.pop(key, None)
    for choice in full["choices"]:
        choice.pop(
            "token_ids", None
        )  # the SDK keeps those of one chunk; a law of their own is below
        choice.pop("weight_versions", None)  # the same
        choice.pop("stop_reason", None)
        message = choice["message"]
        if view.profile is Profile.VLLM:  # which begins every stream with ""
            message["content"] = message["content"] or None
        for call in require_objects(message.get("tool_calls") or [], "tool_calls"):
            call.pop("index", None)
            require_object(call.get("function") or {}, "function").pop("parsed_arguments", None)
    return without_nulls(full)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        fields = {key: without_nulls(item) for key, item in cast(JsonObject, value).items()}
        return {key: item for key, item in fields.items() if item not in (None, {}, [])}
    return (
        [without_nulls(item) for item in cast(list[Any], value)]
        if isinstance(value, list)
        else value
    )


@given(cases(), views)
def test_stream_follows_grammar_and_sums_to_full_response(case: Case, view: ChatRenderOptions):
    chunks = grammar.check_stream(
        write_stream(ChatWriter(HEADER, view), case.events),
        include_usage=view.include_usage,
        extra_reasons=("abort", "cache_threshold"),
    )
    full = json.loads(ChatWriter(HEADER, view).render_full(case.reply))
    grammar.check_object(full, extra_reasons=("abort", "cache_threshold"))
    for index, choice in enumerate(full["choices"]):
        mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
        tokens = case.reply.choices[index].tokens
        for name in ("content", "refusal"):
            assert [entry for part in mine for entry in entries(part, name)] == entries(
                choice, name
            )
        assert [id for part in mine for id in part.get("token_ids") or ()] == (
            choice.get("token_ids") or []
        )
        assert [part["weight_versions"] for part in mine if "weight_versions" in part] == (
            [choice["weight_versions"]] if view.weight_versions else []
        )
        if view.token_ids:
            assert choice["token_ids"] == [token.id for token in tokens]
        if view.logprobs is not None:
            listed = len(entries(choice, "content") + entries(choice, "refusal"))
            assert listed <= len(tokens)
            assert view.profile is Profile.OPENAI or listed == len(tokens)
    if view.continuous_usage:
        usages = [chunk["usage"] for chunk in chunks]
        # Null after text without tokens, of which no count is known.
        counted = [usage["completion_tokens"] for usage in usages if usage is not None]
        assert counted == sorted(counted)
        completion = case.reply.usage.completion
        assert (counted[-1] if usages[-1] else 0) == completion


@given(cases(FUNCTIONS_ONLY), views.filter(lambda view: view.profile is Profile.OPENAI))
def test_objects_and_chunks_satisfy_sdk_types_strictly(case: Case, view: ChatRenderOptions):
    """Only functions: the SDK's chunk type does not have custom tools, although its
    accumulator accepts them.
    """
    ChatCompletion.model_validate_json(
        ChatWriter(HEADER, view).render_full(case.reply), strict=True
    )
    writer = ChatWriter(HEADER, view)
    for event in case.events:
        for block in writer.feed(event).split(b"\n\n")[:-1]:
            ChatCompletionChunk.model_validate_json(block.removeprefix(b"data: "), strict=True)


def entries(choice: JsonObject, name: str) -> list[JsonObject]:
    return require_object(choice["logprobs"] or {}, "logprobs").get(name) or []


def test_seal_covers_only_own_reasoning_part():
    """The reasoning before a text is a separate part, in the stream and in the full
    response.
    """
    events: tuple[Event, ...] = (
        Started(1), ReasoningDelta(0, "a"), TextDelta(0, "x"), ReasoningDelta(0, "b",
        seal="openai:Z0FB"),
        ChoiceFinished(0, FinishReason.STOP), Finished(Usage(1, 3)),
    )  # fmt: skip
    writer = ChatWriter(HEADER)
    folded = ReplyBuilder()
    for event in events:
        folded.feed(event)
    stream = b"".join(map(writer.feed, events))
    detail = b'"summary":"b","data":"Z0FB"'
    assert detail in ChatWriter(HEADER).render_full(folded.build())
    assert detail in stream
