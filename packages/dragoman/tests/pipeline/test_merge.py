"""The answers to several prompts are merged into a legal stream; of several candidates
the likeliest are returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from dragoman.core.errors import EngineError
from dragoman.core.event_grammar import check_events
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Token,
    Usage,
)
from dragoman.core.reply import Reply, ReplyBuilder
from dragoman.pipeline.admit import BestOf
from dragoman.pipeline.driver import BatchStream
from dragoman.pipeline.merge import merge_prompts


def answer(*texts: str, logprob: float = -9.0, prompt: int = 3) -> list[list[Event]]:
    """Return an answer with one batch per event, and all choices at once."""
    stream: list[Event] = [
        TextDelta(i, text, (Token(1, text, logprob + i),)) for i, text in enumerate(texts)
    ]
    ends: list[Event] = [ChoiceFinished(i, FinishReason.STOP) for i in range(len(texts))]
    return [
        [Started(prompt, 1, len(texts))],
        stream,
        ends,
        [Finished(Usage(prompt, len(texts), 1, 0))],
    ]


async def batches(
    groups: Sequence[list[Event]], fail: Exception | None = None
) -> AsyncGenerator[list[Event]]:
    for batch in groups:
        await asyncio.sleep(0)
        yield batch
    if fail is not None:
        raise fail


async def fold(stream: BatchStream) -> Reply:
    events = [event async for batch in stream for event in batch]
    folded = ReplyBuilder()
    for event in check_events(events):
        folded.feed(event)
    return folded.build()


def merge(*prompts: AsyncGenerator[list[Event]]) -> BatchStream:
    return merge_prompts([BatchStream(prompt) for prompt in prompts])


async def test_merge_prompts_keeps_prompt_and_choice_order() -> None:
    reply = await fold(merge(batches(answer("a", "b")), batches(answer("c", "d", prompt=5))))
    assert [choice.join_text() for choice in reply.choices] == ["a", "b", "c", "d"]
    assert reply.usage == Usage(8, 4, 2, 0)
    assert len(reply.prompts) == 2


async def test_merge_prompts_waits_for_start_of_every_prompt() -> None:
    gate = asyncio.Event()

    async def late() -> AsyncGenerator[list[Event]]:
        await gate.wait()
        for batch in answer("late"):
            yield batch

    stream = merge(batches(answer("early")), late())
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not first.done()
    gate.set()
    assert isinstance((await first)[0], Started)
    await stream.aclose()


async def test_merge_prompts_failure_closes_other_prompts() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[list[Event]]:
        try:
            yield [Started(1)]
            await asyncio.Event().wait()
        finally:
            closed.set()

    with pytest.raises(EngineError, match="broke"):
        await fold(merge(endless(), batches(answer("x")[:1], EngineError("broke"))))
    assert closed.is_set()


async def test_merge_prompts_close_closes_every_prompt() -> None:
    closed: list[int] = []

    async def endless(number: int) -> AsyncGenerator[list[Event]]:
        try:
            yield [Started(1)]
            await asyncio.Event().wait()
        finally:
            closed.append(number)

    stream = merge(endless(0), endless(1))
    await anext(stream)
    await stream.aclose()
    assert sorted(closed) == [0, 1]


async def test_best_of_keeps_likeliest_and_counts_all_tokens() -> None:
    reply = await fold(BatchStream(batches(answer("least", "less", "likely")), BestOf(2)))
    assert [choice.join_text() for choice in reply.choices] == ["likely", "less"]
    assert reply.usage.completion == 3
