"""An engine behind a socket answers as in one process, whichever front end sends the
request.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec
import pytest
import pytest_asyncio

from dragoman.constraints.bounded_compiler import BoundedCompiler
from dragoman.core.encoder_requests import EmbedRequest
from dragoman.core.engine import Health
from dragoman.core.errors import (
    ContextTooLong,
    EngineError,
    Overloaded,
    QueueFull,
    RequestError,
    Unsupported,
)
from dragoman.core.events import FinishReason, PromptTokens, Started
from dragoman.core.prompt_images import PromptImage
from dragoman.core.request import (
    NO_EXTRAS,
    Extras,
    GenerationLimits,
    JsonSchema,
    Regex,
    Sampling,
    SamplingOptions,
)
from dragoman.core.token_engine import (
    Ended,
    Failed,
    Rejected,
    Sampled,
    Scheduled,
    TokenEngine,
    TokenOutput,
    TokenRequest,
    WeightVersionSet,
)
from dragoman.core.weight_updates import WeightHistory, WeightsInMemory
from dragoman.engines.base_engine import BaseTokenEngine
from dragoman.engines.remote import EngineChanges, EngineClient, EngineServer, HostedEngine
from dragoman.engines.remote.messages import (
    AddRequest,
    AttachFrontEnd,
    EngineState,
    OutputBatch,
    SentError,
    decode_engine_message,
    decode_front_end_message,
    encode_frame,
)
from dragoman.engines.tiny import find_bundled_model
from dragoman.ipc.frames import FrameBuffer, read_frame
from dragoman.isolation.worker_pool import WorkerLimits
from dragoman.launch import build_models
from dragoman.launch.hosted_model import host_model
from dragoman.pipeline.engine_backends import TokenBackend
from dragoman.pipeline.lora_adapters import Adapter
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.testing import EngineUnderTest
from dragoman.testing.engine_kit import GREEDY, SCHEMA

from .splitting import MODEL, NEEDS_FORK, Split, split

pytestmark = NEEDS_FORK

ENDLESS = GenerationLimits(max_tokens=4000, ignore_eos=True)


def build_local(**settings: object) -> ServedModel:
    return next(iter(build_models(msgspec.structs.replace(MODEL, **settings), SystemClock())))


@pytest_asyncio.fixture
async def running() -> AsyncGenerator[Split]:
    async with split(build_local()) as found:
        yield found


def get_backend(model: ServedModel) -> TokenBackend:
    assert isinstance(model.backend, TokenBackend)
    return model.backend


def get_client(model: ServedModel) -> EngineClient:
    engine = get_backend(model).engine
    assert isinstance(engine, EngineClient)
    return engine


class Receiver:
    """The outputs of one sequence."""

    def __init__(self) -> None:
        self.outputs: list[TokenOutput] = []
        self._changed = asyncio.Event()

    def __call__(self, output: TokenOutput) -> None:
        self.outputs.append(output)
        self._changed.set()

    @property
    def end(self) -> Ended | Failed | Rejected | None:
        last = self.outputs[-1] if self.outputs else None
        return last if isinstance(last, Ended | Failed | Rejected) else None

    @property
    def tokens(self) -> list[int]:
        return [output.token for output in self.outputs if isinstance(output, Sampled)]

    async def wait(self, count: int | None = None) -> list[TokenOutput]:
        """Wait for this number of outputs, or for the end."""
        async with asyncio.timeout(60):
            while (self.end is None) if count is None else (len(self.outputs) < count):
                self._changed.clear()
                await self._changed.wait()
        return self.outputs


def send(engine: TokenEngine, id: str, **fields: object) -> Receiver:
    receiver = Receiver()
    request = TokenRequest(
        id=id, prompt=(1, 2, 3), max_tokens=4000, sampling=Sampling(temperature=0)
    )
    engine.add(msgspec.structs.replace(request, **fields), receiver)
    return receiver


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the other side of the socket has acted."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it reports nothing here
            await asyncio.sleep(0)


async def settle(engine: TokenEngine) -> None:
    """Wait until no request runs in the engine."""
    await until(
        lambda: (
            not (
                engine.health().running or engine.health().waiting or engine.health().kv_cache_usage
            )
        )
    )


async def test_front_ends_match_in_process_engine(running: Split) -> None:
    local = build_local()
    await local.backend.engine.start()
    alone = EngineUnderTest(local)
    schema = JsonSchema(json.dumps(SCHEMA))
    options = SamplingOptions(temperature=1.2, top_p=0.9, repetition_penalty=1.1, seed=5)
    limits = GenerationLimits(max_tokens=24)
    requests = [
        alone.build_request(
            sampling=options, limits=limits, choices=3, logprobs=2, prompt_logprobs=1
        ),
        alone.build_request(sampling=options, limits=limits, choices=2, best_of=3),
        alone.build_request(sampling=GREEDY, limits=GenerationLimits(max_tokens=30, stop=("e",))),
        alone.build_request(
            sampling=options, limits=GenerationLimits(max_tokens=200), constraint=schema
        ),
        alone.build_request(sampling=options, limits=limits, constraint=Regex("[a-c]{5}x")),
    ]
    expected = [await alone.complete(request) for request in requests]
    async with running.front_ends(2) as models:
        subjects = [EngineUnderTest(model) for model in models]
        found = await asyncio.gather(
            *(subject.complete(item) for subject in subjects for item in requests)
        )
        for subject in subjects:
            prompts = [
                event
                for event in await subject.collect_events(requests[0])
                if isinstance(event, PromptTokens)
            ]
            assert len(prompts) == 1
    await local.backend.engine.stop()
    for reply, other in zip([*expected, *expected], found, strict=True):
        assert reply.choices == other.choices
        assert (reply.usage.prompt, reply.usage.completion) == (
            other.usage.prompt,
            other.usage.completion,
        )


async def test_close_at_limit_matches_in_process_engine(running: Split) -> None:
    local = build_local()
    await local.backend.engine.start()
    limits = GenerationLimits(max_tokens=12, close_at_limit=True)
    alone = EngineUnderTest(local)
    request = alone.build_request(
        sampling=GREEDY, limits=limits, constraint=JsonSchema('{"type":"string"}')
    )
    expected = await alone.complete(request)
    await local.backend.engine.stop()
    async with running.front_ends(1) as (model,):
        found = await EngineUnderTest(model).complete(request)
    assert found.choices == expected.choices
    assert found.choices[0].reason is FinishReason.LENGTH
    assert isinstance(json.loads(found.choices[0].join_text()), str)


async def test_prefix_cache_is_shared_between_front_ends(running: Split) -> None:
    async with running.front_ends(2) as models:
        first, second = (EngineUnderTest(model) for model in models)
        request = first.build_request(
            "A story about a fox. " * 20, limits=GenerationLimits(max_tokens=2)
        )
        started = [
            event for event in await first.collect_events(request) if isinstance(event, Started)
        ]
        assert started[0].cached_tokens == 0
        started = [
            event for event in await second.collect_events(request) if isinstance(event, Started)
        ]
        assert (started[0].cached_tokens or 0) > 100
        cache = models[0].interfaces.cache
        assert cache is not None
        assert cache.count_cached_tokens((1, 2, 3), "") is None
        await cache.reset_prefix_cache()
        started = [
            event for event in await second.collect_events(request) if isinstance(event, Started)
        ]
        assert started[0].cached_tokens == 0


async def test_embed_matches_local_engine(running: Split) -> None:
    request = EmbedRequest("tiny", ((1, 2, 3), (4, 5)), dimensions=8)
    own = get_backend(running.local).embedder
    assert own is not None
    async with running.front_ends(1) as (model,):
        embedder = get_backend(model).embedder
        assert embedder is not None
        assert embedder.embedding_info == own.embedding_info
        assert embedder.health().ready
        assert await embedder.embed(request) == await own.embed(request)
        with pytest.raises(RequestError, match="vocabulary"):
            await embedder.embed(EmbedRequest("tiny", ((10**6,),)))


async def test_front_end_disconnect_aborts_only_its_sequences(running: Split) -> None:
    async with running.front_ends(2) as models:
        gone, other = map(get_client, models)
        lost = [send(gone, f"gone-{number}") for number in range(3)]
        survivor = send(other, "kept", max_tokens=60)
        for receiver in (*lost, survivor):
            await receiver.wait(3)
        assert gone.health().running == 3
        assert other.health().running == 1
        await gone.stop()
        assert [type(receiver.end) for receiver in lost] == [Failed] * 3
        await survivor.wait()
        assert isinstance(survivor.end, Ended)
        assert len(survivor.tokens) == 60
        # Paused sequences do not end by themselves: only the aborted ones are gone.
        await get_client(models[1]).control.pause("keep")
        await settle(get_backend(running.local).engine)


async def test_aborted_sequence_is_freed_and_emits_no_output(running: Split) -> None:
    async with running.front_ends(1) as (model,):
        client = get_client(model)
        receiver = send(client, "a")
        await receiver.wait(3)
        client.abort("a")
        client.abort("unknown")
        count = len(receiver.outputs)
        await settle(get_backend(running.local).engine)
        await send(client, "b", max_tokens=5).wait()
        assert len(receiver.outputs) == count
        assert client.health().running == client.health().waiting == 0


async def test_abort_during_grammar_compile_prevents_start(
    running: Split,
) -> None:
    async with running.front_ends(1) as (model,):
        subject = EngineUnderTest(model)
        client = get_client(model)
        grammar = await get_backend(model).compiler.recompile('start: "a"+')
        matcher = grammar.build_matcher()
        receiver = send(client, "a", matcher=matcher, grammar=grammar.text)
        client.abort("a")
        await subject.complete(subject.build_request(limits=GenerationLimits(max_tokens=2)))
        await settle(get_backend(running.local).engine)
        assert receiver.outputs == []


def build_constrained(owner: str, number: int) -> AddRequest:
    """Build a request with a grammar and a salt of its own."""
    return AddRequest(
        id=f"{owner}-{number}",
        prompt=(1,),
        max_tokens=9,
        sampling=Sampling(),
        min_tokens=0,
        stop_token_ids=frozenset(),
        logprobs=None,
        logprob_ids=(),
        prompt_logprobs=None,
        grammar=f'start: "{owner}"{{{number}}}',
        closes_at_limit=False,
        reasoning_budget=None,
        priority=0,
        cache_salt=f"{owner}\n{number}",
        extras=NO_EXTRAS,
        choice=0,
        trace=None,
        is_constrained=True,
    )


async def test_engine_process_compiles_for_owners_in_turn() -> None:
    local = build_local()
    backend = get_backend(local)
    limits = WorkerLimits(processes=1)
    compiler = BoundedCompiler(backend.tokenizer, sorted(backend.eos), worker_limits=limits)
    local = dataclasses.replace(local, backend=dataclasses.replace(backend, compiler=compiler))
    hosted = host_model(local)
    ended: list[str] = []

    async def build_matcher(owner: str, number: int) -> None:
        await hosted.build_matcher(build_constrained(owner, number))
        ended.append(owner)

    await asyncio.gather(*(build_matcher("b", n) for n in range(1, 31)), build_matcher("a", 1))
    # One grammar of b is compiled when that of a arrives, and one more may be next.
    assert ended.index("a") <= 2
    local.close_workers()


async def test_engine_rejections_keep_error_types() -> None:
    async with (
        split(build_local(max_num_seqs=1, max_queued_requests=1)) as running,
        running.front_ends(2) as models,
    ):
        first, second = map(get_client, models)
        long = await send(first, "long", prompt=(1,) * 4096).wait()
        assert isinstance(long[0], Rejected)
        assert isinstance(long[0].error, ContextTooLong)
        assert (long[0].error.limit, long[0].error.prompt) == (4096, 4096)
        unknown = await send(first, "unknown", prompt=(10**6,)).wait()
        assert isinstance(unknown[0], Rejected)
        assert (type(unknown[0].error), unknown[0].error.param) == (RequestError, "prompt")
        # All front ends share the engine's queue.
        busy = [send(first, f"busy-{number}") for number in range(2)]
        await busy[0].wait(2)
        full = await send(second, "full").wait()
        assert isinstance(full[0], Rejected)
        assert isinstance(full[0].error, QueueFull)
        assert full[0].error.retry_after == QueueFull.retry_after
        assert (first.health().running, first.health().waiting) == (1, 1)


async def test_full_engine_is_rejected_by_front_end() -> None:
    async with (
        split(build_local(max_num_seqs=1, max_queued_requests=1)) as running,
        running.front_ends(2) as models,
    ):
        first, second = map(get_client, models)
        busy = [send(first, f"busy-{number}") for number in range(2)]
        await busy[0].wait(2)
        subject = EngineUnderTest(models[1])
        with pytest.raises(QueueFull, match="reached its limit of 2 sequences"):
            await subject.complete(subject.build_request())
        with pytest.raises(QueueFull, match="The request queue is full"):
            await subject.complete(subject.build_request())
        assert second.health().running == 0


async def test_unsendable_request_is_rejected(running: Split) -> None:
    async with running.front_ends(1) as (model,):
        client = get_client(model)
        with pytest.raises(Unsupported, match="images"):
            send(client, "a", images=(PromptImage(0, 1, b"", None),))
        matcher = (await get_backend(model).compiler.recompile('start: "a"')).build_matcher()
        with pytest.raises(Unsupported, match="grammar"):
            send(client, "a", matcher=matcher)
        receiver = send(client, "a", max_tokens=2)
        with pytest.raises(ValueError, match="already running"):
            send(client, "a")
        await receiver.wait()


class PromptFailingEngine(BaseTokenEngine):
    """An engine that fails on prompts that begin with 7 or 8."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[int]:
        if request.prompt[0] == 8:
            raise Overloaded("Not now.", retry_after=9.0)
        for token in range(3):
            if request.prompt[0] == 7 and token == 2:
                raise RuntimeError("broken")
            yield token
            await asyncio.sleep(0)


async def build_no_matcher(_: AddRequest) -> None:
    raise AssertionError


async def test_engine_exception_fails_only_its_request() -> None:
    engine = PromptFailingEngine(find_bundled_model(), 100)
    async with split(build_local()) as running:
        await running.server.stop()
        hosted = HostedEngine(engine, 100, build_no_matcher)  # pyright: ignore[reportArgumentType]
        server = running.server = EngineServer(hosted, running.listener)
        await server.start()
        client = EngineClient(running.path, hosted.describe())
        await client.start()
        good = send(client, "good")
        bad = send(client, "bad", prompt=(7,))
        later = send(client, "later", prompt=(8,))
        scheduled, *outputs = await bad.wait()
        assert isinstance(scheduled, Scheduled)
        assert msgspec.structs.replace(scheduled, elapsed=0.0) == Scheduled("bad", 0, 0)
        assert outputs == [
            Sampled("bad", 0),
            Sampled("bad", 1),
            Failed("bad", "The engine failed; see the server's log."),
        ]
        assert isinstance((await good.wait())[-1], Ended)
        assert isinstance((await later.wait())[-1], Failed)
        # The engine has none of the other parts.
        with pytest.raises(RequestError, match="does not support"):
            await client.control.pause()
        assert client.control.weight_version == ""
        await client.stop()


class Failing(PromptFailingEngine):
    """An engine that can be made to fail permanently."""

    has_failed = False

    def health(self) -> Health:
        return Health(ready=not self.has_failed, reason="no step completed", failed=self.has_failed)


async def test_permanently_failed_engine_is_reported(running: Split) -> None:
    engine = Failing(find_bundled_model(), 100)
    await running.server.stop()
    hosted = HostedEngine(engine, 100, build_no_matcher)  # pyright: ignore[reportArgumentType]
    ticks: asyncio.Queue[None] = asyncio.Queue()
    server = running.server = EngineServer(hosted, running.listener, lambda _: ticks.get())
    await server.start()
    client = EngineClient(running.path, hosted.describe())
    await client.start()
    ticks.put_nowait(None)
    await until(ticks.empty)
    assert client.health().ready
    assert not server.failed.is_set()
    engine.has_failed = True
    ticks.put_nowait(None)
    await server.failed.wait()
    await until(lambda: not client.health().ready)
    assert client.health().reason == "no step completed"
    await client.stop()


async def test_control_call_updates_engine_and_all_front_ends(running: Split) -> None:
    async with running.front_ends(2) as models:
        first, second = (get_client(model).control for model in models)
        client = get_client(models[1])
        receiver = send(client, "a")
        await receiver.wait(3)
        await first.pause("keep")
        assert first.is_paused
        queued = send(client, "queued")
        assert await second.abort_all() == 2
        assert second.is_paused
        assert (await receiver.wait())[-1] == Ended("a", FinishReason.ABORT)
        assert await queued.wait() == [
            Scheduled("queued", 0, 0),
            Ended("queued", FinishReason.ABORT),
        ]
        await second.resume()
        await first.sleep(1)
        await second.wake_up()
        assert not second.is_paused
        assert second.sleep_level == 0
        assert len(await send(client, "b", max_tokens=3).wait()) == 6
        with pytest.raises(RequestError, match="were rejected"):
            await first.update_weights(WeightsInMemory((b"nothing",)))
        weights = next(find_bundled_model().glob("*.safetensors")).read_bytes()
        assert await first.update_weights(WeightsInMemory((weights,)), "step-1") == "step-1"
        assert first.weight_version == "step-1"
        await second.set_weight_version("step-2")
        assert second.weight_version == "step-2"
        versions = [
            item.version
            for item in await send(client, "c", max_tokens=3).wait()
            if isinstance(item, WeightVersionSet)
        ]
        assert versions == ["step-2"]


class Registry:
    """Implements HostedAdapters with adapters that have only names."""

    def __init__(self) -> None:
        self.entries = {"first": "a"}

    def list_entries(self) -> Sequence[tuple[str, str]]:
        return list(self.entries.items())

    async def load(self, name: str, path: str) -> None:
        if path == "missing":
            raise RequestError("There is no such adapter.", param="lora_path")
        self.entries[name] = path

    async def unload(self, name: str) -> None:
        self.entries.pop(name, None)


async def test_adapter_load_is_visible_to_all_front_ends(running: Split) -> None:
    running.adapters = registry = Registry()
    await running.server.stop()
    await running.start()
    async with running.front_ends(2) as models:
        first, second = (model.adapters for model in models)
        assert first is not None
        assert second is not None
        assert list(second) == [Adapter("first", "a")]
        await first.load(Adapter("other", "b"))
        with pytest.raises(RequestError, match="no such adapter"):
            await first.load(Adapter("wrong", "missing"))
        # The state arrives before the end of a later call.
        await get_client(models[1]).control.resume()
        assert list(second) == list(first) == [Adapter("first", "a"), Adapter("other", "b")]
        await second.unload("first")
        assert "first" not in second
        await until(lambda: "first" not in first)
        assert list(registry.entries) == ["other"]


async def test_engine_restart_keeps_adapters_and_reports_lost_weights(running: Split) -> None:
    weights = next(find_bundled_model().glob("*.safetensors")).read_bytes()
    changes: list[EngineChanges] = []
    running.adapters = Registry()
    await running.server.stop()
    await running.start(on_change=changes.append)
    async with running.front_ends(1) as (model,):
        client = get_client(model)
        adapters = model.adapters
        assert adapters is not None
        await adapters.load(Adapter("other", "b"))
        await adapters.load(Adapter("gone", "c"))
        await adapters.unload("first")
        await client.control.update_weights(WeightsInMemory((weights,)), "step-1")
        # It has not changed.
        await client.control.resume()
        assert changes[-1] == EngineChanges(
            WeightHistory("step-1", 1, "step-1"), (("other", "b"), ("gone", "c"))
        )
        assert len(changes) == 4
    await running.server.stop()
    running.adapters = registry = Registry()
    running.local.close_workers()
    running.local = build_local()
    await running.start(
        inherited=msgspec.structs.replace(
            changes[-1], adapters=(("other", "b"), ("gone", "missing"))
        )
    )
    assert registry.entries == {"other": "b"}
    async with running.front_ends(1) as (model,):
        client = get_client(model)
        assert list(model.adapters or ()) == [Adapter("other", "b")]
        assert client.control.weight_version == "default"
        (rejected,) = await send(client, "early").wait()
        assert isinstance(rejected, Rejected)
        assert "has lost the weights of version 'step-1'" in str(rejected.error)
        await client.control.update_weights(WeightsInMemory((weights,)), "step-2")
        assert isinstance((await send(client, "later", max_tokens=2).wait())[-1], Ended)


async def test_engine_exit_fails_requests_and_client_reconnects(
    running: Split,
) -> None:
    """A fake server closes the connection during a request."""
    async with running.front_ends(1) as (model,):
        client = get_client(model)
        await running.server.stop()
        await until(lambda: not client.health().ready)
        assert client.health().reason == "the engine process is not running"
        with pytest.raises(Overloaded, match="is being restarted") as raised:
            send(client, "early")
        assert raised.value.retry_after == 5.0
        with pytest.raises(Overloaded, match="is being restarted"):
            await client.control.pause()
        peer, reader = await _accept(running)
        assert await _read(reader, 1) == [AttachFrontEnd()]
        peer.write(encode_frame(EngineState(1, 0, True, None, 0.0, False, 0, "other", ())))
        await until(lambda: client.health().ready)
        assert client.control.weight_version == "other"
        started = send(client, "started")
        waiting = send(client, "waiting")
        calling = asyncio.create_task(client.control.pause())
        call, _ = await _accept(running)
        peer.write(encode_frame(OutputBatch([Scheduled("started", 0), Sampled("started", 5)])))
        await started.wait(2)
        peer.transport.abort()
        assert isinstance((await started.wait())[-1], Failed)
        (rejected,) = await waiting.wait()
        assert isinstance(rejected, Rejected)
        assert isinstance(rejected.error, Overloaded)
        # A call does not wait for the next process.
        with pytest.raises(Overloaded):
            await calling
        call.transport.abort()
        await running.start()
        await until(lambda: client.health().ready)
        assert isinstance((await send(client, "later", max_tokens=2).wait())[-1], Ended)


async def _accept(running: Split) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
    accepted, _ = await asyncio.get_running_loop().sock_accept(running.listener)
    reader, writer = await asyncio.open_unix_connection(sock=accepted)
    return writer, reader


async def _read(reader: asyncio.StreamReader, count: int) -> list[object]:
    """Read this number of messages from a front end."""
    found: list[object] = []
    for _ in range(count):
        found.append(decode_front_end_message(await read_frame(reader)))
    return found


def build_add(id: str, max_tokens: int) -> AddRequest:
    fields = {
        name: getattr(TokenRequest(id, (1, 2), max_tokens), name)
        for name in AddRequest.__struct_fields__[:-1]
    }
    return AddRequest(**fields, is_constrained=False)


def test_extras_roundtrip_keeps_types() -> None:
    extras = Extras(
        kv_transfer_params='{"a": [1]}', lora="sql", data_parallel_rank=3, session_id='a"b'
    )
    sent = msgspec.structs.replace(build_add("a", 5), extras=extras)
    (frame,) = FrameBuffer().feed(encode_frame(sent))
    assert decode_front_end_message(frame) == sent


async def test_step_outputs_are_sent_in_one_frame(running: Split) -> None:
    reader, writer = await asyncio.open_unix_connection(running.path)
    writer.write(
        encode_frame(AttachFrontEnd())
        + b"".join(encode_frame(build_add(str(id), 20)) for id in range(8))
    )
    frames: list[OutputBatch] = []
    n_ended = 0
    while n_ended < 8:
        message = decode_engine_message(await read_frame(reader))
        if isinstance(message, OutputBatch):
            frames.append(message)
            n_ended += sum(isinstance(output, Ended) for output in message.outputs)
    # The first sequences may be prefilled before the others arrive.
    assert len(frames) <= 22
    assert sum(isinstance(output, Sampled) for frame in frames for output in frame.outputs) == 160
    writer.close()


async def test_outputs_for_slow_front_end_are_merged(running: Split) -> None:
    reader, writer = await asyncio.open_unix_connection(running.path, limit=1)
    # More bytes than the buffers of both sides hold.
    request = msgspec.structs.replace(build_add("a", 250), logprobs=250)
    writer.write(encode_frame(AttachFrontEnd()) + encode_frame(request))
    await settle_after_start(get_backend(running.local).engine)
    buffer = FrameBuffer()
    outputs = list[TokenOutput]()
    sizes = list[int]()
    while not any(isinstance(output, Ended) for output in outputs):
        for frame in buffer.feed(await reader.read(1 << 16)):
            match decode_engine_message(frame):
                case OutputBatch(found):
                    outputs += found  # pyright: ignore[reportArgumentType]
                    sizes.append(len(found))
                case _:
                    pass
    assert sum(isinstance(output, Sampled) for output in outputs) == 250
    assert max(sizes) > 10
    writer.close()


async def settle_after_start(engine: TokenEngine) -> None:
    await until(lambda: bool(engine.health().running))
    await settle(engine)


async def test_front_end_without_reads_is_disconnected(
    running: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.engines.remote.server.MAX_UNSENT", 50)
    _, writer = await asyncio.open_unix_connection(running.path, limit=1)
    request = msgspec.structs.replace(build_add("a", 4000), logprobs=250)
    writer.write(encode_frame(AttachFrontEnd()) + encode_frame(request))
    await until(lambda: bool(get_backend(running.local).engine.health().running))
    async with asyncio.timeout(60):
        await running.server.idle.wait()
    await settle(get_backend(running.local).engine)
    writer.close()


@pytest.mark.parametrize(
    "error",
    [
        RequestError("No.", param="prompt", code="x"),
        ContextTooLong(limit=1, prompt=2, at_least=True, param="messages"),
        QueueFull("Full."),
        EngineError("Failed."),
    ],
)
def test_sent_error_roundtrip_keeps_type_and_fields(error: RequestError | EngineError) -> None:
    built = SentError.of(error).build()
    assert type(built) is type(error)
    for name in ("message", "param", "code", "retry_after", "status"):
        assert getattr(built, name) == getattr(error, name)


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 20])
def test_frame_buffer_feed_accepts_any_split(cut: int) -> None:
    data = b"".join(encode_frame(build_add(str(id), 20)) for id in range(3))
    buffer = FrameBuffer()
    pieces = [data[start : start + cut] for start in range(0, len(data), cut)]
    found = [decode_front_end_message(frame) for piece in pieces for frame in buffer.feed(piece)]
    assert found == [build_add(str(id), 20) for id in range(3)]
