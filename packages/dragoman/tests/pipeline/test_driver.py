"""The driver calls every stage of a response, whichever way its batches take."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from tests.pipeline.test_prompt_run import SteppedEngine
from tests.serving.harness import load_tiny_tokenizer

from dragoman.core.errors import EngineError
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Usage,
)
from dragoman.core.request import GenerateRequest, GenerationLimits
from dragoman.core.token_engine import Ended, Sampled, Scheduled
from dragoman.engines.scripted import ScriptedEngine
from dragoman.launch import build_models
from dragoman.pipeline.admit import admit
from dragoman.pipeline.driver import BatchStream, Stage
from dragoman.pipeline.engine_backends import EventBackend, TokenBackend
from dragoman.pipeline.response_times import TimingsReport
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.testing.engine_under_test import build_conversation, build_terms

ANSWER: list[Event] = [
    Started(1),
    TextDelta(0, "a"),
    ChoiceFinished(0, FinishReason.STOP),
    Finished(Usage(1, 1)),
]


async def stream(*events: Event | Exception) -> AsyncGenerator[list[Event]]:
    for event in events:
        if isinstance(event, Exception):
            raise event
        yield [event]


class RecordingStage(Stage):
    """Records the calls of the driver.

    n_failing: number of fed batches after which `feed` raises.
    """

    def __init__(self, n_failing: int | None = None) -> None:
        self.calls: list[str] = []
        self.closed_with: list[type[BaseException] | None] = []
        self._n_failing = n_failing

    def begin(self) -> None:
        self.calls.append("begin")

    def feed(self, batch: list[Event]) -> list[Event]:
        self.calls += [type(event).__name__ for event in batch]
        if len(self.calls) - 1 == self._n_failing:
            raise ValueError("a stage failed")
        return batch

    async def finish(self) -> None:
        self.calls.append("finish")

    async def fail(self, error: Exception) -> Exception:
        self.calls.append("fail")
        return EngineError(str(error))

    def close(self, error: BaseException | None, /) -> None:
        self.closed_with.append(None if error is None else type(error))


class ClientSink:
    """A client.

    is_ready: whether it keeps up.
    """

    def __init__(self, *, is_ready: bool) -> None:
        self.is_ready = is_ready
        self.events: list[Event] = []
        self.written: list[bytes] = []

    def render(self, batch: list[Event]) -> bytes:
        self.events += batch
        return b",".join(type(event).__name__.encode() for event in batch)

    def write(self, batch: list[Event]) -> None:
        self.written.append(self.render(batch))

    async def send(self, chunk: bytes) -> None:
        pass


async def test_stream_complete_finishes_and_closes_stages() -> None:
    stage = RecordingStage()
    batches = BatchStream(stream(*ANSWER), stage)
    assert [event async for batch in batches for event in batch] == ANSWER
    await batches.aclose()
    kinds = [type(event).__name__ for event in ANSWER]
    assert stage.calls == ["begin", *kinds, "finish"]
    assert stage.closed_with == [None]


async def test_stream_failure_passes_every_stage() -> None:
    stages = [RecordingStage(), RecordingStage()]
    batches = BatchStream(stream(ANSWER[0], ValueError("broken")), *stages)
    await anext(batches)
    with pytest.raises(EngineError, match="broken"):
        await anext(batches)
    for stage in stages:
        assert stage.calls == ["begin", "Started", "fail"]
        assert stage.closed_with == [EngineError]


async def test_stage_failure_closes_source_and_stages() -> None:
    is_source_closed = False

    async def endless() -> AsyncGenerator[list[Event]]:
        nonlocal is_source_closed
        try:
            while True:
                yield [ANSWER[0]]
        finally:
            is_source_closed = True

    stage = RecordingStage(n_failing=2)
    batches = BatchStream(endless(), stage)
    await anext(batches)
    with pytest.raises(EngineError, match="a stage failed"):
        await anext(batches)
    assert is_source_closed
    assert stage.closed_with == [EngineError]


async def test_stream_closed_early_closes_stages_once() -> None:
    stage = RecordingStage()
    batches = BatchStream(stream(*ANSWER), stage)
    await anext(batches)
    await batches.aclose()
    await batches.aclose()
    assert stage.calls == ["begin", "Started"]
    assert stage.closed_with == [GeneratorExit]


async def test_stream_dropped_before_start_closes_stages() -> None:
    stage = RecordingStage()
    BatchStream(stream(*ANSWER), stage)
    gc.collect()
    assert stage.calls == []
    assert stage.closed_with == [GeneratorExit]


async def test_stage_holding_batches_delays_only_them() -> None:
    class Holding(Stage):
        """Emits everything at the end."""

        def __init__(self) -> None:
            self.held: list[Event] = []

        def feed(self, batch: list[Event]) -> list[Event]:
            self.held += batch
            return self.held if isinstance(batch[-1], Finished) else []

    batches = BatchStream(stream(*ANSWER), Holding())
    assert [batch async for batch in batches] == [ANSWER]


@pytest.fixture(scope="module")
def tiny() -> ServedModel:
    return next(iter(build_models(Settings(), SystemClock())))


@pytest.mark.parametrize("can_write", [False, True])
@pytest.mark.parametrize("is_ready", [False, True])
async def test_token_run_stages_same_for_any_client(
    tiny: ServedModel, is_ready: bool, can_write: bool
) -> None:
    """A stage gets each event once, in order, also those that the client's task is not
    resumed for.
    """
    assert isinstance(tiny.backend, TokenBackend)
    engine = SteppedEngine()
    model = replace(tiny, backend=replace(tiny.backend, engine=engine))
    request = GenerateRequest(
        model.name, build_conversation("Hello"), limits=GenerationLimits(max_tokens=9)
    )
    run = await admit(model, [request], build_terms())
    stage = RecordingStage()
    run.batches.add_stage(stage)
    sink = ClientSink(is_ready=is_ready)
    response = asyncio.ensure_future(run.batches.deliver(sink, can_write=can_write))
    await asyncio.sleep(0)
    token = tiny.backend.tokenizer.encode("word", special=False)[0]
    for output in (
        Scheduled("a", 0),
        Sampled("a", token),
        Sampled("a", token),
        Ended("a", FinishReason.LENGTH),
    ):
        engine.deliver[0](output)
        for _ in range(4):
            await asyncio.sleep(0)
    await response
    kinds = ["Started", "TextDelta", "TextDelta", "ChoiceFinished", "Finished"]
    assert [type(event).__name__ for event in sink.events] == kinds
    assert stage.calls == ["begin", *kinds, "finish"]
    assert stage.closed_with == [None]
    assert bool(sink.written) is (is_ready and can_write)


@pytest.mark.parametrize("is_ready", [False, True])
async def test_sink_failure_fails_stages_for_any_client(tiny: ServedModel, is_ready: bool) -> None:
    class RaisingSink(ClientSink):
        def render(self, batch: list[Event]) -> bytes:
            if isinstance(batch[-1], TextDelta):
                raise ValueError("cannot be rendered")
            return super().render(batch)

    assert isinstance(tiny.backend, TokenBackend)
    engine = SteppedEngine()
    model = replace(tiny, backend=replace(tiny.backend, engine=engine))
    request = GenerateRequest(model.name, build_conversation("Hello"))
    run = await admit(model, [request], build_terms())
    stage = RecordingStage()
    run.batches.add_stage(stage)
    sink = RaisingSink(is_ready=is_ready)
    response = asyncio.ensure_future(run.batches.deliver(sink, can_write=True))
    await asyncio.sleep(0)
    engine.deliver[0](Scheduled("a", 0))
    engine.deliver[0](Sampled("a", tiny.backend.tokenizer.encode("word", special=False)[0]))
    with pytest.raises(EngineError, match="cannot be rendered"):
        await response
    assert stage.calls[-1] == "fail"
    assert stage.closed_with == [EngineError]
    assert len(engine.aborted) == 1


async def test_stages_after_holding_stage_get_no_empty_batch() -> None:
    class Dropping(Stage):
        def feed(self, batch: list[Event]) -> list[Event]:
            return [event for event in batch if not isinstance(event, TextDelta)]

    stage = RecordingStage()
    batches = BatchStream(stream(*ANSWER), Dropping(), TimingsReport(lambda: 0.0), stage)
    assert [len(batch) async for batch in batches] == [1, 1, 1]
    assert "TextDelta" not in stage.calls


async def test_stage_close_failure_still_closes_others(caplog: pytest.LogCaptureFixture) -> None:
    class Raising(Stage):
        def close(self, _: BaseException | None, /) -> None:
            raise ValueError("broken")

    stage = RecordingStage()
    await BatchStream(stream(*ANSWER), Raising(), stage).aclose()
    assert stage.closed_with == [GeneratorExit]
    assert "failed to close" in caplog.text


class WaitingEngine(ScriptedEngine):
    """An event engine that starts, and then waits for ever."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        del request
        yield Started(1)
        await asyncio.get_running_loop().create_future()


async def test_engine_failure_between_batches_ends_response() -> None:
    model = ServedModel("m", EventBackend(WaitingEngine(tokenizer=load_tiny_tokenizer())), 4096, 0)
    run = await admit(model, [GenerateRequest("m", prompt="x")], build_terms())
    assert [type(event) for event in await anext(run.batches)] == [Started]
    model.progress.fail_all(EngineError("gone"))
    with pytest.raises(EngineError, match="gone"):
        await asyncio.wait_for(anext(run.batches), 60)


class ReferencedStream(BatchStream):
    __slots__ = ("__weakref__",)


async def test_finished_response_is_freed_without_collection() -> None:
    batches = ReferencedStream(stream(*ANSWER), RecordingStage())
    freed = weakref.ref(batches)
    gc.disable()
    try:
        assert len([batch async for batch in batches]) == len(ANSWER)
        del batches
        assert freed() is None
    finally:
        gc.enable()
