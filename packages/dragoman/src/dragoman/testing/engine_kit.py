"""The conformance tests that every engine must pass."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import jsonschema_rs
import msgspec
import pytest

from ..core.capabilities import Feature
from ..core.errors import ContextTooLong, DragomanError
from ..core.events import Event, FinishReason, PromptTokens, Started, get_answer_tokens
from ..core.message import FunctionTool, ToolChoice
from ..core.reply import Choice, Reply
from ..core.request import (
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    Regex,
    SamplingOptions,
    StringChoices,
)
from ..pipeline.admit import admit
from .engine_under_test import EngineUnderTest, build_conversation, build_reply, build_terms


def are_same(one: Reply, other: Reply, *, exact: bool) -> bool:
    """Whether two replies are equal, in text, tokens, finish reasons and logprobs.

    exact: if False, logprobs may differ in their last digits.
    """
    if exact:
        return one.choices == other.choices
    return all(map(_are_alike, one.choices, other.choices)) and len(one.choices) == len(
        other.choices
    )


def _are_alike(one: Choice, other: Choice) -> bool:
    if (one.join_text(), one.reason, one.stop) != (other.join_text(), other.reason, other.stop):
        return False
    scores = [[token.logprob for token in choice.tokens] for choice in (one, other)]
    assert [token.id for token in one.tokens] == [token.id for token in other.tokens]
    return scores[0] == pytest.approx(scores[1], abs=1e-3)


def list_token_ids(reply: Reply, choice: int = 0) -> list[int]:
    return [token.id for token in reply.choices[choice].tokens]


def count_tokens(events: list[Event]) -> int:
    return sum(len(get_answer_tokens(event)) for event in events)


def get_prompt_tokens(events: list[Event]) -> int:
    started = events[0]
    assert isinstance(started, Started)
    assert started.prompt_tokens is not None
    return started.prompt_tokens


LONG_TEXT = (
    "Once upon a time there was a fox. It lived near the river and was curious about the world."
)


def build_sampling(**options: object) -> SamplingOptions:
    return SamplingOptions(**options)  # pyright: ignore[reportArgumentType]


GREEDY = build_sampling(temperature=0.0)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def build_mixed_request(subject: EngineUnderTest, number: int) -> GenerateRequest:
    """Build one of many different requests.

    number: 0 to 31 give 32 requests, no two of which are equal.
    """
    can = subject.model.capabilities
    kinds = [
        GREEDY,
        build_sampling(temperature=1.0, seed=number),
        build_sampling(temperature=1.3, top_p=0.8, seed=number),
        build_sampling(temperature=0.9, top_k=5, min_p=0.05, seed=number),
        build_sampling(temperature=0.7, frequency_penalty=0.5, presence_penalty=0.3, seed=number),
        # Not combined with the other penalties: llama.cpp cannot exclude the prompt
        # from those then, and rejects it.
        build_sampling(temperature=0.7, repetition_penalty=1.2, seed=number),
    ]
    texts = [
        "Hello",
        "Count to 12.",
        "Tell me a story.",
        "What is 3 + 4?",
        LONG_TEXT * (1 + number % 4),
    ]
    return subject.build_request(
        texts[number % len(texts)],
        sampling=kinds[number % len(kinds)],
        limits=GenerationLimits(max_tokens=4 + number),
        logprobs=min(number % 3, can.max_logprobs)
        if number % 2 and Feature.LOGPROBS in can.features
        else None,
    )


class EngineKit:
    """The tests of an engine.

    Subclass it as `class TestMyEngine(EngineKit)`, with a fixture `subject` that yields
    an `EngineUnderTest`.

    Only tests of features and parameters that the engine's capabilities do not declare
    are skipped. The engine needs a context of at most 5000 tokens, and must reply with
    at least 30 tokens if the request allows it.
    """

    pytestmark = pytest.mark.asyncio

    async def test_usage_counts_output_tokens(self, subject: EngineUnderTest) -> None:
        events = await subject.collect_events(
            subject.build_request(sampling=GREEDY, limits=GenerationLimits(max_tokens=20))
        )
        usage = build_reply(events).usage
        assert usage.completion == count_tokens(events) <= 20
        assert usage.prompt == get_prompt_tokens(events) > 0

    async def test_max_tokens_is_exact_and_reported(self, subject: EngineUnderTest) -> None:
        reply = await subject.complete(
            subject.build_request(sampling=GREEDY, limits=GenerationLimits(max_tokens=3))
        )
        assert reply.usage.completion == 3
        assert reply.choices[0].reason is FinishReason.LENGTH

    @pytest.mark.parametrize("n", [1, 3])
    async def test_every_choice_is_answered_and_counted(
        self, subject: EngineUnderTest, n: int
    ) -> None:
        events = await subject.collect_events(
            subject.build_request(choices=n, limits=GenerationLimits(max_tokens=8))
        )
        reply = build_reply(events)
        assert len(reply.choices) == n
        assert reply.usage.completion == sum(len(choice.tokens) for choice in reply.choices)

    async def test_too_long_prompt_is_rejected_before_start(self, subject: EngineUnderTest) -> None:
        with pytest.raises(ContextTooLong):
            await subject.collect_events(subject.build_request("word " * 6000))

    async def test_same_seed_gives_same_reply(self, subject: EngineUnderTest) -> None:
        subject.require_parameters("seed")
        request = subject.build_request(
            sampling=build_sampling(seed=7, temperature=1.5),
            choices=2,
            limits=GenerationLimits(max_tokens=16),
        )
        first, second = await subject.complete(request), await subject.complete(request)
        assert first.choices == second.choices

    async def test_stop_string_ends_text_and_is_hidden(self, subject: EngineUnderTest) -> None:
        plain = (
            (
                await subject.complete(
                    subject.build_request(sampling=GREEDY, limits=GenerationLimits(max_tokens=30))
                )
            )
            .choices[0]
            .join_text()
        )
        # Taken from the reply itself, since no fixed string is certain to occur in it.
        stop = plain[8:11]
        limits = GenerationLimits(max_tokens=30, stop=(stop,))
        reply = await subject.complete(subject.build_request(sampling=GREEDY, limits=limits))
        assert reply.choices[0].join_text() == plain[: plain.index(stop)]
        assert (reply.choices[0].reason, reply.choices[0].stop) == (FinishReason.STOP, stop)

    async def test_tokens_have_logprobs_and_alternatives(self, subject: EngineUnderTest) -> None:
        subject.require(Feature.LOGPROBS)
        max_alternatives = min(2, subject.model.capabilities.max_logprobs)
        request = subject.build_request(
            sampling=GREEDY, limits=GenerationLimits(max_tokens=10), logprobs=max_alternatives
        )
        tokens = (await subject.complete(request)).choices[0].tokens
        assert tokens
        for token in tokens:
            assert token.logprob is not None
            assert token.logprob <= 0.0
            assert len(token.top) <= max_alternatives
            assert all(other.logprob <= 0.0 for other in token.top)

    async def test_prompt_tokens_have_logprobs(self, subject: EngineUnderTest) -> None:
        subject.require(Feature.PROMPT_LOGPROBS)
        request = subject.build_request(
            prompt_logprobs=1, return_prompt=True, limits=GenerationLimits(max_tokens=1)
        )
        events = await subject.collect_events(request)
        (prompt,) = [event for event in events if isinstance(event, PromptTokens)]
        assert len(prompt.tokens) == get_prompt_tokens(events)
        assert prompt.tokens[0].logprob is None
        assert all(token.logprob is not None for token in prompt.tokens[1:])

    async def test_prompt_token_ids_give_same_reply_as_text(self, subject: EngineUnderTest) -> None:
        subject.require(Feature.TOKEN_IDS)
        tokenizer = subject.model.tokenizer
        assert tokenizer is not None
        text = "Once upon a time"
        limits = GenerationLimits(max_tokens=8)
        text_request = GenerateRequest(subject.model.name, text, sampling=GREEDY, limits=limits)
        # Includes the special tokens that an engine adds to a text.
        ids_request = msgspec.structs.replace(
            text_request, prompt=tuple(tokenizer.encode(text, special=True))
        )
        assert list_token_ids(await subject.complete(text_request)) == list_token_ids(
            await subject.complete(ids_request)
        )

    async def test_json_schema_constrains_reply(self, subject: EngineUnderTest) -> None:
        if subject.is_scripted:
            pytest.skip(
                "a script's replies are fixed; it rejects a reply that the request's schema forbids"
            )
        subject.require(Feature.JSON_SCHEMA)
        for seed in range(4):
            request = subject.build_request(
                constraint=JsonSchema(json.dumps(SCHEMA)),
                sampling=build_sampling(seed=seed, temperature=2.0),
                limits=GenerationLimits(max_tokens=200),
            )
            choice = (await subject.complete(request)).choices[0]
            assert choice.reason is FinishReason.STOP
            jsonschema_rs.validate(SCHEMA, json.loads(choice.join_text()))

    @pytest.mark.parametrize(
        ("constraint", "feature", "fits"),
        [
            (Regex("[a-c]{5}x"), Feature.REGEX, lambda text: len(text) == 6 and text.endswith("x")),  # pyright: ignore
            (StringChoices(("yes", "no")), Feature.CHOICE, lambda text: text in ("yes", "no")),  # pyright: ignore
        ],
    )
    async def test_regex_constrains_reply(
        self,
        subject: EngineUnderTest,
        constraint: Regex | StringChoices,
        feature: Feature,
        fits: Callable[[str], bool],
    ) -> None:
        if subject.is_scripted:
            pytest.skip("a script's replies are fixed")
        subject.require(feature)
        request = subject.build_request(
            constraint=constraint, sampling=build_sampling(temperature=2.0, seed=1)
        )
        assert fits((await subject.complete(request)).choices[0].join_text())

    async def test_required_tool_call_follows_schema(self, subject: EngineUnderTest) -> None:
        if subject.is_scripted:
            pytest.skip("a script's replies are fixed")
        subject.require(Feature.TOOLS, Feature.JSON_SCHEMA)
        tool = FunctionTool("make_person", "Make a person", json.dumps(SCHEMA), strict=True)
        prompt = msgspec.structs.replace(
            build_conversation("Make one."),
            tools=(tool,),
            tool_choice=ToolChoice("required"),
            parallel_tool_calls=False,
        )
        request = GenerateRequest(
            subject.model.name,
            prompt,
            sampling=build_sampling(temperature=2.0, seed=3),
            limits=GenerationLimits(max_tokens=300),
        )
        calls = (await subject.complete(request)).choices[0].list_calls()
        assert calls
        for call in calls:
            assert call.name == "make_person"
            jsonschema_rs.validate(SCHEMA, json.loads(call.arguments))

    async def test_closed_stream_frees_engine(self, subject: EngineUnderTest) -> None:
        run = await admit(
            subject.model,
            [subject.build_request(limits=GenerationLimits(max_tokens=2000, ignore_eos=True))],
            build_terms(),
        )
        # The first batch shows that the engine has started: closing earlier would test
        # nothing.
        assert await anext(run.batches)
        await run.batches.aclose()
        while subject.model.backend.engine.health().running:  # noqa: ASYNC110 - the engine's thread does not report it
            await asyncio.sleep(0)
        assert subject.model.backend.engine.health().waiting == 0

    async def test_concurrent_requests_reply_as_alone(self, subject: EngineUnderTest) -> None:
        requests = [build_mixed_request(subject, number) for number in range(16)]
        together = await asyncio.gather(*(subject.complete(request) for request in requests))
        for request, among_others in zip(requests, together, strict=True):
            assert are_same(await subject.complete(request), among_others, exact=subject.is_exact)

    async def test_rejected_request_leaves_engine_unchanged(self, subject: EngineUnderTest) -> None:
        with pytest.raises(DragomanError):
            await subject.collect_events(subject.build_request("word " * 6000))
        reply = await subject.complete(subject.build_request(limits=GenerationLimits(max_tokens=2)))
        assert reply.usage.completion
