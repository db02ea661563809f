"""The engine on its thread: new requests, aborts, failures and shutdown."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from msgspec.structs import replace

from dragoman.core.capabilities import Feature
from dragoman.core.encoder_requests import EmbedRequest
from dragoman.core.errors import ContextTooLong, EngineError, Overloaded, RequestError, Unsupported
from dragoman.core.events import FinishReason
from dragoman.core.request import Extras, GenerationLimits, Sampling, SamplingOptions
from dragoman.core.token_engine import Ended, Failed, TokenOutput, TokenRequest
from dragoman.engines.batching import EngineConfig, EngineLimits, SchedulerConfig, build_rng
from dragoman.engines.tiny import TinyEngine, find_bundled_model, load
from dragoman.engines.tiny.engine import compute_mean_state
from dragoman.engines.tiny.llama import Llama

from ..harness import GREEDY, PLAIN, AllowedTokensMatcher, run_alone, run_client
from .models import write_model

PROMPT = tuple(np.random.default_rng(2).integers(0, 96, 20).tolist())
ASK = TokenRequest(id="a", prompt=PROMPT, max_tokens=10, sampling=GREEDY)
ENDLESS = replace(ASK, id="endless", max_tokens=10_000)


def engine(
    model: Llama, limits: SchedulerConfig = PLAIN, *, max_num_waiting: int = 100
) -> TinyEngine:
    config = EngineConfig(
        max_model_len=1024, num_kv_tokens=4096, max_num_waiting=max_num_waiting, scheduler=limits
    )
    return TinyEngine(model, config, build_rng)


ONE = SchedulerConfig(max_num_seqs=1)


class BlockingMatcher(AllowedTokensMatcher):
    """A matcher that blocks the engine's thread within a step until it is opened. Sets
    an event when it is reached.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tokens: int) -> None:
        super().__init__([range(96)] * tokens)
        self.reached = asyncio.Event()
        self._loop = loop
        self._opened = threading.Event()

    def mask(self) -> bytes:
        self._loop.call_soon_threadsafe(self.reached.set)
        assert self._opened.wait(60)
        return super().mask()

    def open(self) -> None:
        self._opened.set()


class CountingMatcher(AllowedTokensMatcher):
    """A matcher that counts its steps."""

    steps = 0

    def mask(self) -> bytes:
        self.steps += 1
        return super().mask()


class InvalidMaskMatcher(AllowedTokensMatcher):
    """A matcher whose invalid mask makes the whole step fail, as a bug in the engine
    would.
    """

    def mask(self) -> bytes:
        return cast("bytes", 7)


async def test_requests_join_and_abort_during_decode(small_model: Llama) -> None:
    async with run_client(engine(small_model)) as client:
        endless = client.send(ENDLESS)
        await client.until(endless, tokens=3)
        assert (await client.ask(ASK)).answer == run_alone(small_model, ASK).answer
        assert endless.end is None
        client.engine.abort("endless")
        assert client.engine.health().running == client.engine.health().waiting == 0


async def test_abort_stops_output_delivery(small_model: Llama) -> None:
    async with run_client(engine(small_model)) as client:
        endless = client.send(ENDLESS)
        await client.until(endless, tokens=2)
        client.engine.abort("endless")
        count = len(endless)
        again = client.send(replace(ENDLESS, max_tokens=5))
        await client.ends(again)
        assert len(endless) == count
        assert again.tokens == run_alone(small_model, replace(ENDLESS, max_tokens=5)).tokens


async def test_abort_removes_queued_request(small_model: Llama) -> None:
    async with run_client(engine(small_model, ONE)) as client:
        first = client.send(replace(ENDLESS, max_tokens=40))
        queued = client.send(ASK)
        third = client.send(replace(ASK, id="third"))
        client.engine.abort("a")
        await client.ends(first, third)
        assert queued == []


async def test_abort_between_prefill_chunks_ends_request(small_model: Llama) -> None:
    gate = BlockingMatcher(asyncio.get_running_loop(), 3)
    prompt = tuple(np.random.default_rng(2).integers(0, 96, 900).tolist())
    async with run_client(engine(small_model, SchedulerConfig(max_step_pairs=1))) as client:
        held = client.send(replace(ASK, id="gate", matcher=gate))
        long = client.send(replace(ASK, prompt=prompt))
        await gate.reached.wait()
        client.engine.abort("a")
        gate.open()
        await client.ends(held)
        assert (await client.ask(replace(ASK, id="next"))).end is not None
        assert long.tokens == []
        assert not client.engine.health().running


async def test_add_and_abort_do_not_block_during_step(small_model: Llama) -> None:
    """The thread is blocked within a step, and the event loop continues."""
    gate = BlockingMatcher(asyncio.get_running_loop(), 2)
    async with run_client(engine(small_model)) as client:
        held = client.send(replace(ASK, id="gate", matcher=gate))
        await gate.reached.wait()
        other = client.send(ASK)
        client.send(replace(ASK, id="gone"))
        client.engine.abort("gone")
        assert client.engine.health().ready
        gate.open()
        await client.ends(held, other)
        assert other.tokens == run_alone(small_model, ASK).tokens


async def test_aborted_request_runs_at_most_one_more_step(small_model: Llama) -> None:
    counting = CountingMatcher([range(96)] * 1000)
    async with run_client(engine(small_model, ONE)) as client:
        endless = client.send(replace(ENDLESS, matcher=counting))
        await client.until(endless, tokens=1)
        client.engine.abort("endless")
        steps = counting.steps
        assert len((await client.ask(ASK)).tokens) == 10
        assert counting.steps <= steps + 1


async def test_step_exception_fails_only_its_request(
    small_model: Llama, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_client(engine(small_model)) as client:
        running = client.send(replace(ASK, id="running", max_tokens=40))
        await client.until(running, tokens=1)
        poisoned = client.send(replace(ASK, matcher=InvalidMaskMatcher([{1}])))
        await client.ends(running, poisoned)
        assert isinstance(poisoned.end, Failed)
        assert poisoned.end.message.startswith("The engine failed while computing a step: ")
        assert "a step failed" in caplog.text
        assert client.engine.health().ready
        assert running.tokens[:10] == run_alone(small_model, ASK).tokens
        assert len(running.tokens) == 40


async def test_stop_fails_running_and_waiting_requests(small_model: Llama) -> None:
    async with run_client(engine(small_model, ONE)) as client:
        streams = [client.send(replace(ENDLESS, id=str(number))) for number in range(3)]
        await client.until(streams[0], tokens=1)
        await client.engine.stop()
        assert [stream.end for stream in streams] == [
            Failed(str(n), "The engine is shutting down.") for n in range(3)
        ]
        assert all(thread.name != "tiny-engine" for thread in threading.enumerate())
        assert not client.engine.health().ready
        with pytest.raises(EngineError, match="not running"):
            client.send(ASK)


async def test_stop_without_start_succeeds(small_model: Llama) -> None:
    idle = engine(small_model)
    assert not idle.health().ready
    idle.abort("nobody")
    await idle.stop()


async def test_full_queue_rejects_request(small_model: Llama) -> None:
    gate = BlockingMatcher(asyncio.get_running_loop(), 1)
    async with run_client(engine(small_model, ONE, max_num_waiting=1)) as client:
        streams = [client.send(replace(ASK, id="gate", matcher=gate)), client.send(ASK)]
        await gate.reached.wait()
        with pytest.raises(Overloaded):
            client.send(replace(ASK, id="third"))
        assert client.engine.health().waiting >= 1
        gate.open()
        await client.ends(*streams)
        assert (await client.ask(replace(ASK, id="third"))).end is not None


async def test_stalled_engine_is_not_ready(small_model: Llama) -> None:
    now = [0.0]
    gate = BlockingMatcher(asyncio.get_running_loop(), 1)
    config = EngineConfig(max_model_len=64, num_kv_tokens=64, stall_after=5)
    async with run_client(
        TinyEngine(small_model, config, build_rng, clock=lambda: now[0])
    ) as client:
        now[0] = 100.0
        assert client.engine.health().ready
        held = client.send(replace(ASK, matcher=gate))
        await gate.reached.wait()
        now[0] = 104.0
        assert client.engine.health().ready
        now[0] = 106.0
        assert client.engine.health().reason == "no step completed for 6 s"
        gate.open()
        await client.ends(held)
        assert client.engine.health().ready


async def test_raising_receiver_does_not_affect_other_requests(small_model: Llama) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: complaints.append(context["exception"])
    )

    def refuse(output: TokenOutput) -> None:
        raise ArithmeticError

    async with run_client(engine(small_model)) as client:
        client.engine.add(replace(ASK, id="refuse"), refuse)
        assert (await client.ask(ASK)).end == Ended("a", FinishReason.LENGTH)
    assert complaints
    assert all(isinstance(complaint, ArithmeticError) for complaint in complaints)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (replace(ASK, prompt=()), RequestError),
        (replace(ASK, prompt=(1, 96)), RequestError),
        (replace(ASK, prompt=(1, -1)), RequestError),
        (replace(ASK, prompt=(1,) * 1024), ContextTooLong),
        (replace(ASK, max_tokens=0), RequestError),
        (replace(ASK, extras=Extras(lora="a")), Unsupported),
        (replace(ASK, sampling=Sampling(logit_bias=((96, 1.0),))), RequestError),
        (replace(ASK, sampling=Sampling(allowed_token_ids=(3, 1000))), RequestError),
    ],
)
async def test_add_invalid_request_is_rejected(
    small_model: Llama, request_: TokenRequest, error: type[Exception]
) -> None:
    async with run_client(engine(small_model)) as client:
        with pytest.raises(error):
            client.send(request_)
        assert client.engine.health().waiting == 0
        assert len((await client.ask(ASK)).tokens) == 10


async def test_longest_prompt_generates_one_token(small_model: Llama) -> None:
    async with run_client(engine(small_model)) as client:
        outputs = await client.ask(replace(ASK, prompt=(1,) * 1023))
        assert len(outputs.tokens) == 1
        assert outputs.end == Ended("a", FinishReason.LENGTH)


async def test_add_duplicate_id_raises(small_model: Llama) -> None:
    async with run_client(engine(small_model)) as client:
        client.send(ENDLESS)
        with pytest.raises(ValueError, match="endless"):
            client.send(ENDLESS)


def test_capabilities_include_all_parameters_and_no_images(small_model: Llama) -> None:
    capabilities = engine(small_model).capabilities
    assert capabilities.parameters == set(SamplingOptions.__struct_fields__) | set(
        GenerationLimits.__struct_fields__
    )
    assert Feature.LOGPROBS in capabilities.features
    assert Feature.IMAGES not in capabilities.features
    assert capabilities.max_logprobs >= 20


async def test_bundled_model_loads_and_generates() -> None:
    tiny = load(find_bundled_model(), EngineLimits(max_model_len=512, num_kv_tokens=1024))
    assert tiny.max_model_len == 512
    async with run_client(tiny) as client:
        outputs = await client.ask(replace(ASK, logprobs=20))
    assert len(outputs.tokens) == 10


def test_load_with_invalid_limits_raises(tmp_path: Path) -> None:
    directory = write_model(tmp_path)
    for impossible in (
        EngineLimits(max_model_len=2048),
        EngineLimits(max_model_len=1),
        EngineLimits(max_model_len=512, num_kv_tokens=256),
        EngineLimits(max_num_seqs=0),
        EngineLimits(max_num_seqs=9, max_num_batched_tokens=8),
    ):
        with pytest.raises(EngineError, match="max_"):
            load(directory, impossible)


def test_build_rng_depends_only_on_seed() -> None:
    assert [build_rng(5)() for _ in range(2)] == [build_rng(5)()] * 2
    assert (
        len({build_rng(5)(), build_rng(-5)(), build_rng(6)(), build_rng(None)(), build_rng(None)()})
        == 5
    )


async def test_embed_during_decode_keeps_results(small_model: Llama) -> None:
    tiny = engine(small_model)
    expected = compute_mean_state(small_model, PROMPT)
    await tiny.embedder.start()
    async with run_client(tiny) as client:
        endless = client.send(replace(ENDLESS, max_tokens=200))
        request = EmbedRequest("m", (PROMPT, PROMPT[:2], PROMPT), normalize=False)
        answers = await asyncio.gather(*(tiny.embedder.embed(request) for _ in range(4)))
        assert {answer.vectors for answer in answers} == {answers[0].vectors}
        assert answers[0].vectors[0] == answers[0].vectors[2] == expected.astype("<f4").tobytes()
        await client.ends(endless)
        assert endless.tokens == run_alone(small_model, replace(ENDLESS, max_tokens=200)).tokens
    await tiny.embedder.stop()


async def test_embed_token_outside_vocab_is_rejected(small_model: Llama) -> None:
    with pytest.raises(RequestError, match="vocabulary"):
        await engine(small_model).embedder.embed(EmbedRequest("m", ((96,),)))


def test_build_config_small_batch_lowers_default_max_num_seqs() -> None:
    config = EngineLimits(max_num_batched_tokens=32).build_config(
        max_positions=512, num_kv_tokens=1024, max_num_batched_tokens=512
    )
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (32, 32)
