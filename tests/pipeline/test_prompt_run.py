"""One prompt on an engine of tokens, where the engine does what the kit's engines never do."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dragoman.core.engine import (
    Capabilities,
    Ended,
    Health,
    OutputCallback,
    Rejected,
    Sampled,
    Scheduled,
    TokenOutput,
    TokenRequest,
)
from dragoman.core.errors import RequestError
from dragoman.core.events import ChoiceFinished, Event, Finished, FinishReason, Started, TextDelta
from dragoman.core.request import GenerateRequest, GenerationLimits
from dragoman.launch import build_models
from dragoman.pipeline.models import ServedModel, TokenBackend
from dragoman.pipeline.run import admit
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.testing.engine_kit import build_conversation, build_terms


class Late:
    """Takes every request, and then finds out that it cannot."""

    capabilities = Capabilities()

    def __init__(self) -> None:
        self.aborted: list[str] = []

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        deliver(Rejected(request.id, RequestError("not this one", param="temperature")))

    def abort(self, id: str) -> None:
        self.aborted.append(id)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()


@pytest.fixture(scope="module")
def tiny() -> ServedModel:
    return next(iter(build_models(Settings(), SystemClock())))


async def test_a_late_refusal_of_an_engine_equals_an_immediate_one(tiny: ServedModel) -> None:
    assert isinstance(tiny.backend, TokenBackend)
    engine = Late()
    model = replace(tiny, backend=replace(tiny.backend, engine=engine))
    request = GenerateRequest(model.name, build_conversation("Hello"), choices=2, limits=GenerationLimits(max_tokens=3))
    run = await admit(model, [request], build_terms())
    with pytest.raises(RequestError, match="not this one") as refused:
        await anext(run.batches)
    assert refused.value.param == "temperature"
    assert len(engine.aborted) == 2


class Stepped(Late):
    """Takes every request, whose output is the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.deliver: list[OutputCallback] = []

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        self.deliver.append(deliver)


class Collected:
    """A receiver that takes whatever comes."""

    is_ready = True

    def __init__(self) -> None:
        self.batches: list[list[Event]] = []

    def receive(self, batch: list[Event]) -> None:
        self.batches.append(batch)


async def test_a_receiver_that_is_ready_gets_all_but_the_end(tiny: ServedModel) -> None:
    """Its consumer is resumed once: to end."""
    assert isinstance(tiny.backend, TokenBackend)
    engine, collected = Stepped(), Collected()
    model = replace(tiny, backend=replace(tiny.backend, engine=engine))
    limits = GenerationLimits(max_tokens=1)
    run = await admit(model, [GenerateRequest(model.name, build_conversation("Hello"), limits=limits)], build_terms())
    assert run.direct is not None
    run.direct.attach(collected)
    first = asyncio.ensure_future(anext(run.batches))
    await asyncio.sleep(0)
    token = tiny.backend.tokenizer.encode("word", special=False)[0]
    steps: list[list[TokenOutput]] = [
        [Scheduled("a", 0)],
        [Sampled("a", token)],
        [Sampled("a", token), Ended("a", FinishReason.LENGTH)],
    ]
    for step in steps:
        assert not first.done()
        for output in step:
            engine.deliver[0](output)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [type(event) for event in await first] == [Finished]
    kinds = [[type(event) for event in batch] for batch in collected.batches]
    assert kinds == [[Started], [TextDelta], [TextDelta, ChoiceFinished]]
