"""Completions: the SDK's chunks, concatenated, equal our full response."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from dragoman.core.message import Refusal, Text
from dragoman.dialects.completions.writer import CompletionsRenderOptions, CompletionsWriter
from dragoman.dialects.interfaces import Header, Profile
from dragoman_check.rules import completions as grammar
from dragoman_check.rules.json_values import require_objects

from .sdk import OpenAiSdk, write_stream
from .strategies import OPENAI_REASONS, Case, Kinds, cases

JsonObject = dict[str, Any]
HEADER = Header("cmpl-1", 1700000000, "org/model", "fp_1")
MANY = Kinds(max_prompts=3, max_choices=2)
MANY_OF_OPENAI = Kinds(max_prompts=3, max_choices=2, reasons=OPENAI_REASONS)
TEXT_ONLY = Kinds(parts=(Text, Refusal), max_prompts=2, max_choices=2)
views = st.builds(
    CompletionsRenderOptions,
    profile=st.sampled_from(Profile),
    logprobs=st.sampled_from((None, 0, 1, 2)),
    token_ids=st.booleans(),
    tokens_as_ids=st.booleans(),
    include_usage=st.booleans(),
    continuous_usage=st.booleans(),
    service_tier=st.booleans(),
    weight_versions=st.booleans(),
    echo=st.booleans(),
    special_tokens_in_text=st.booleans(),
)


@pytest.fixture(scope="module")
def sdk() -> OpenAiSdk:
    return OpenAiSdk()


@given(cases(MANY), views)
def test_stream_follows_grammar_and_joins_to_full_response(
    sdk: OpenAiSdk, case: Case, view: CompletionsRenderOptions
):
    stream = write_stream(CompletionsWriter(HEADER, view), case.events)
    grammar.check_stream(
        stream, include_usage=view.include_usage, extra_reasons=("abort", "cache_threshold")
    )
    chunks = [json.loads(chunk.to_json()) for chunk in sdk.completions(stream)]
    full = json.loads(CompletionsWriter(HEADER, view).render_full(case.reply))
    grammar.check_object(full, extra_reasons=("abort", "cache_threshold"))
    for choice in require_objects(full["choices"], "choices"):
        choice.pop("prompt_logprobs", None)
    assert folded(chunks, len(full["choices"])) == full["choices"]
    assert all(chunk["id"] == full["id"] and chunk["model"] == full["model"] for chunk in chunks)
    if view.include_usage:
        assert chunks[-1]["usage"] == full["usage"]


def folded(chunks: list[JsonObject], count: int) -> list[JsonObject]:
    """Concatenate texts and lists; for other fields take the last value."""
    choices: list[JsonObject] = [{"text": ""} for _ in range(count)]
    for chunk in chunks:
        for part in require_objects(chunk["choices"], "choices"):
            index: int = part["index"]
            choice = choices[index]
            choice.update({key: join_values(choice.get(key), value) for key, value in part.items()})
    return choices


def join_values(before: Any, now: Any) -> Any:
    if now is None:
        return before
    if isinstance(before, dict):
        return {
            key: join_values(value, now[key]) for key, value in cast(JsonObject, before).items()
        }
    if isinstance(before, list):
        return cast(list[Any], before) + now
    return before + now if isinstance(before, str) else now


@given(
    cases(MANY_OF_OPENAI),
    views.filter(lambda view: view.profile is Profile.OPENAI and not view.echo),
)
def test_full_response_satisfies_sdk_types_strictly(case: Case, view: CompletionsRenderOptions):
    """With an echo the first token has no logprob; OpenAI's schema does not allow that
    null.
    """
    Completion.model_validate_json(
        CompletionsWriter(HEADER, view).render_full(case.reply), strict=True
    )


@given(cases(TEXT_ONLY))
def test_logprob_text_offsets_match_token_text(case: Case):
    """If the tokens' texts join to the answer, the offsets are exact."""
    view = CompletionsRenderOptions(logprobs=0, echo=True, special_tokens_in_text=True)
    full = json.loads(CompletionsWriter(HEADER, view).render_full(case.reply))
    each = len(case.reply.choices) // len(case.reply.prompts)
    for i, choice in enumerate(full["choices"]):
        prompt = case.reply.prompts[i // each]
        assert prompt is not None
        for token, offset in zip(prompt.tokens, choice["logprobs"]["text_offset"], strict=False):
            if all(one.raw is None for one in prompt.tokens):
                assert choice["text"][offset:].startswith(token.text)
