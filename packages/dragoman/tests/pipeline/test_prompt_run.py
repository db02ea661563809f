"""One prompt on engines with behavior that the test kit's engines never have."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from dragoman.core.capabilities import Capabilities
from dragoman.core.engine import EventDelivery, Health
from dragoman.core.errors import EngineError, RequestError
from dragoman.core.events import ChoiceFinished, Event, Finished, FinishReason, Started, TextDelta
from dragoman.core.request import GenerateRequest, GenerationLimits
from dragoman.core.token_engine import (
    Ended,
    Failed,
    OutputCallback,
    Rejected,
    Sampled,
    Scheduled,
    TokenOutput,
    TokenRequest,
)
from dragoman.launch import build_models
from dragoman.pipeline.admit import admit
from dragoman.pipeline.engine_backends import EventBackend, TokenBackend
from dragoman.pipeline.engine_progress import Progress
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.testing.engine_under_test import build_conversation, build_terms


class LateRejectingEngine:
    """An engine that accepts every request, and rejects it later."""

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


async def test_late_engine_rejection_equals_immediate_rejection(tiny: ServedModel) -> None:
    assert isinstance(tiny.backend, TokenBackend)
    engine = LateRejectingEngine()
    model = replace(tiny, backend=replace(tiny.backend, engine=engine))
    request = GenerateRequest(
        model.name, build_conversation("Hello"), choices=2, limits=GenerationLimits(max_tokens=3)
    )
    run = await admit(model, [request], build_terms())
    with pytest.raises(RequestError, match="not this one") as rejected:
        await anext(run.batches)
    assert rejected.value.param == "temperature"
    assert len(engine.aborted) == 2


class SteppedEngine(LateRejectingEngine):
    """An engine that accepts every request; the test provides the output."""

    def __init__(self) -> None:
        super().__init__()
        self.deliver: list[OutputCallback] = []

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        self.deliver.append(deliver)


class CollectingSink:
    """A sink that is always ready.

    batches: what it has rendered.
    sent: the batches for which its task was resumed.
    """

    is_ready = True

    def __init__(self) -> None:
        self.batches: list[list[Event]] = []
        self.sent: list[list[Event]] = []

    def render(self, batch: list[Event]) -> bytes:
        self.batches.append(batch)
        return b"batch"

    def write(self, batch: list[Event]) -> None:
        self.render(batch)

    async def send(self, chunk: bytes) -> None:
        self.sent.append(self.batches[-1])


async def test_run_releases_job_when_engine_has_it(tiny: ServedModel) -> None:
    assert isinstance(tiny.backend, TokenBackend)
    model = replace(tiny, backend=replace(tiny.backend, engine=SteppedEngine()))
    request = GenerateRequest(model.name, build_conversation("Hello"))
    run = await admit(model, [request], build_terms())
    (job,) = run.jobs
    references = sys.getrefcount(job)
    response = asyncio.ensure_future(run.batches.deliver(CollectingSink(), can_write=True))
    await asyncio.sleep(0)
    assert sys.getrefcount(job) == references - 1
    response.cancel()
    await asyncio.gather(response, return_exceptions=True)


async def test_ready_sink_gets_batches_in_delivery(tiny: ServedModel) -> None:
    """The consumer is resumed only for the end."""
    assert isinstance(tiny.backend, TokenBackend)
    engine = SteppedEngine()
    sink = CollectingSink()
    model = replace(tiny, backend=replace(tiny.backend, engine=engine))
    limits = GenerationLimits(max_tokens=1)
    run = await admit(
        model,
        [GenerateRequest(model.name, build_conversation("Hello"), limits=limits)],
        build_terms(),
    )
    response = asyncio.ensure_future(run.batches.deliver(sink, can_write=True))
    await asyncio.sleep(0)
    token = tiny.backend.tokenizer.encode("word", special=False)[0]
    steps: list[list[TokenOutput]] = [
        [Scheduled("a", 0)],
        [Sampled("a", token)],
        [Sampled("a", token), Ended("a", FinishReason.LENGTH)],
    ]
    for step in steps:
        assert not response.done()
        for output in step:
            engine.deliver[0](output)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await response
    kinds = [[type(event) for event in batch] for batch in sink.batches]
    assert kinds == [[Started], [TextDelta], [TextDelta, ChoiceFinished], [Finished]]
    assert sink.sent == [sink.batches[-1]]


class DirectEngine:
    """An engine that delivers the test's events in its generator, and never ends by
    itself.

    delivery: events that the engine passes on from inside its own generator, before it
        yields another delta.
    """

    capabilities = Capabilities()

    def __init__(self, *delivery: Event) -> None:
        self._delivery = list(delivery)
        self.deliver: asyncio.Future[EventDelivery] = asyncio.get_running_loop().create_future()

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        raise NotImplementedError

    async def generate_directly(
        self, request: GenerateRequest, deliver: EventDelivery
    ) -> AsyncGenerator[Event]:
        yield Started(1)
        if self._delivery:
            deliver(self._delivery)
            yield TextDelta(0, "late")
        self.deliver.set_result(deliver)
        await asyncio.Event().wait()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()


async def collect_directly(engine: DirectEngine, progress: Progress) -> list[Event]:
    """Collect the events that the consumer is resumed for, then wait again, which would
    reveal a stray cancellation.
    """
    model = ServedModel("m", EventBackend(engine), 4096, 1_700_000_000, progress=progress)
    limits = GenerationLimits(stop=("<stop>",))
    run = await admit(
        model, [GenerateRequest("m", build_conversation("Hello"), limits=limits)], build_terms()
    )
    sink = CollectingSink()
    await run.batches.deliver(sink, can_write=True)
    await asyncio.sleep(0)
    return [event for batch in sink.sent for event in batch]


async def test_engine_failure_after_stop_string_keeps_response() -> None:
    engine = DirectEngine()
    progress = Progress()
    consumer = asyncio.ensure_future(collect_directly(engine, progress))
    deliver = await engine.deliver
    await asyncio.sleep(0)
    deliver([TextDelta(0, "<stop>")])
    progress.fail_all(EngineError("The engine has crashed."))
    assert [type(event) for event in await consumer] == [Started, Finished]


async def test_stop_string_in_engine_generator_keeps_consumer_running() -> None:
    events = await asyncio.ensure_future(
        collect_directly(DirectEngine(TextDelta(0, "<stop>")), Progress())
    )
    assert [type(event) for event in events] == [Started, Finished]


async def test_engine_failure_after_last_choice_is_ignored(tiny: ServedModel) -> None:
    """The engine's step can fail before it has handled the abort of a sequence that a
    stop string ended.
    """
    assert isinstance(tiny.backend, TokenBackend)
    engine = SteppedEngine()
    model = replace(tiny, backend=replace(tiny.backend, engine=engine))
    limits = GenerationLimits(max_tokens=9, stop=("word",))
    run = await admit(
        model,
        [GenerateRequest(model.name, build_conversation("Hello"), limits=limits)],
        build_terms(),
    )
    consumer = asyncio.ensure_future(anext(run.batches))
    await asyncio.sleep(0)
    engine.deliver[0](Scheduled("a", 0))
    for token in tiny.backend.tokenizer.encode("word", special=False):
        engine.deliver[0](Sampled("a", token))
    engine.deliver[0](Failed("a", "The step failed."))
    assert [type(event) for event in await consumer] == [Started, ChoiceFinished]
    assert [[type(event) for event in batch] async for batch in run.batches] == [[Finished]]


class WholeResponse:
    """A response to a client that gets it as a whole."""

    def __init__(self, tiny: ServedModel) -> None:
        assert isinstance(tiny.backend, TokenBackend)
        self.engine = SteppedEngine()
        self.model = replace(tiny, backend=replace(tiny.backend, engine=self.engine))
        self.sink = CollectingSink()
        self.token = tiny.backend.tokenizer.encode("word", special=False)[0]

    async def begin(self, limits: GenerationLimits) -> asyncio.Task[None]:
        request = GenerateRequest(self.model.name, build_conversation("Hello"), limits=limits)
        run = await admit(self.model, [request], build_terms())
        response = asyncio.create_task(
            run.batches.deliver(self.sink, can_write=True, is_whole=True)
        )
        await asyncio.sleep(0)
        return response

    async def deliver(self, *outputs: TokenOutput) -> None:
        for output in outputs:
            self.engine.deliver[0](output)
        for _ in range(4):
            await asyncio.sleep(0)


async def test_whole_response_is_read_at_its_end(tiny: ServedModel) -> None:
    whole = WholeResponse(tiny)
    response = await whole.begin(GenerationLimits(max_tokens=9))
    await whole.deliver(Scheduled("a", 0))
    assert whole.model.queues.generation.n_running == 1
    events = whole.model.progress.events
    await whole.deliver(Sampled("a", whole.token))
    assert whole.model.progress.events == events + 1
    assert whole.sink.batches == []
    await whole.deliver(Ended("a", FinishReason.LENGTH))
    await response
    kinds = [[type(event) for event in batch] for batch in whole.sink.batches]
    assert kinds == [[Started, TextDelta, ChoiceFinished, Finished]]


async def test_long_whole_response_is_read_in_parts(tiny: ServedModel) -> None:
    whole = WholeResponse(tiny)
    response = await whole.begin(GenerationLimits(max_tokens=200))
    await whole.deliver(Scheduled("a", 0), *[Sampled("a", whole.token)] * 150)
    assert len(whole.sink.batches) == 1
    await whole.deliver(Ended("a", FinishReason.LENGTH))
    await response
    assert sum(len(batch) for batch in whole.sink.batches) == 153


async def test_whole_response_stop_string_ends_engine_at_once(tiny: ServedModel) -> None:
    whole = WholeResponse(tiny)
    response = await whole.begin(GenerationLimits(max_tokens=9, stop=("w",)))
    await whole.deliver(Scheduled("a", 0), Sampled("a", whole.token))
    assert len(whole.engine.aborted) == 1
    await response


async def test_dropped_response_ends_engine_work(tiny: ServedModel) -> None:
    assert isinstance(tiny.backend, TokenBackend)
    engine = SteppedEngine()
    model = replace(tiny, backend=replace(tiny.backend, engine=engine))
    run = await admit(
        model, [GenerateRequest(model.name, build_conversation("Hello"))], build_terms()
    )
    first = asyncio.ensure_future(anext(run.batches))
    await asyncio.sleep(0)
    engine.deliver[0](Scheduled("a", 0))
    await first
    del run, first
    for _ in range(4):
        await asyncio.sleep(0)
    assert len(engine.aborted) == 1
    assert model.progress.running == 0
