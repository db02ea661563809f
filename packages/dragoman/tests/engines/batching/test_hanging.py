"""A step that hangs: its requests fail, and the engine restarts with a new thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dragoman.core.errors import EngineError
from dragoman.core.token_engine import Failed, TokenRequest
from dragoman.engines.batching import BatchingEngine, EngineConfig, build_rng
from dragoman.engines.tiny.llama import Llama
from dragoman.engines.tiny.paged_llama import PagedLlama

from ..harness import GREEDY, AllowedTokensMatcher, Client, run_alone

ASK = TokenRequest(id="a", prompt=tuple(range(3, 20)), max_tokens=4, sampling=GREEDY)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class BlockedStepMatcher(AllowedTokensMatcher):
    """Blocks the thread within a step until it is released."""

    def __init__(self) -> None:
        super().__init__([range(96)] * 4)
        self.reached = threading.Event()
        self._going = threading.Event()
        self.left = threading.Event()

    def mask(self) -> bytes:
        self.reached.set()
        assert self._going.wait(60)
        self.left.set()
        return super().mask()

    def release(self) -> None:
        self._going.set()


def hanging(model: Llama) -> tuple[BatchingEngine, Clock]:
    clock = Clock()
    config = EngineConfig(512, 2048, stall_after=60.0, step_timeout=300.0)
    return BatchingEngine(PagedLlama(model), config, build_rng, clock), clock


async def test_hanging_step_fails_requests_and_replaces_thread(small_model: Llama) -> None:
    engine, clock = hanging(small_model)
    await engine.start()
    client = Client(engine)
    stuck = BlockedStepMatcher()
    outputs = client.send(
        TokenRequest(id="x", prompt=ASK.prompt, max_tokens=4, sampling=GREEDY, matcher=stuck)
    )
    await asyncio.to_thread(stuck.reached.wait, 60)
    clock.now += 61
    assert (engine.health().ready, engine.health().failed) == (False, False)
    clock.now += 240
    assert engine.health().failed
    assert engine.health().reason == "no step completed for 301 s"
    ordered = asyncio.ensure_future(engine.reset_prefix_cache())
    await asyncio.sleep(0)
    # Returns although the thread does not.
    await engine.stop()
    assert isinstance(outputs.end, Failed)
    with pytest.raises(EngineError):
        await ordered
    await engine.start()
    assert engine.health().ready
    assert (await client.ask(ASK)).tokens == run_alone(small_model, ASK).tokens
    stuck.release()
    await asyncio.to_thread(stuck.left.wait, 60)
    assert (await client.ask(ASK)).tokens == run_alone(small_model, ASK).tokens
    assert len(outputs) == 1
    await engine.stop()


async def test_hanging_step_is_detected_after_client_abort(small_model: Llama) -> None:
    engine, clock = hanging(small_model)
    await engine.start()
    stuck = BlockedStepMatcher()
    Client(engine).send(
        TokenRequest(id="x", prompt=ASK.prompt, max_tokens=4, sampling=GREEDY, matcher=stuck)
    )
    await asyncio.to_thread(stuck.reached.wait, 60)
    engine.abort("x")
    clock.now += 61
    assert not engine.health().ready
    engine.set_paused(paused=True)
    clock.now += 240
    assert engine.health().failed
    await engine.stop()
    stuck.release()


async def test_stop_during_hanging_step_returns_after_step_timeout(
    small_model: Llama,
) -> None:
    engine = BatchingEngine(
        PagedLlama(small_model), EngineConfig(512, 2048, step_timeout=0.05), build_rng, Clock()
    )
    await engine.start()
    stuck = BlockedStepMatcher()
    Client(engine).send(
        TokenRequest(id="x", prompt=ASK.prompt, max_tokens=4, sampling=GREEDY, matcher=stuck)
    )
    await asyncio.to_thread(stuck.reached.wait, 60)
    async with asyncio.timeout(60):
        await engine.stop()
    stuck.release()


async def test_pause_is_not_reported_as_hanging_step(small_model: Llama) -> None:
    engine, clock = hanging(small_model)
    await engine.start()
    await engine.control.pause("keep")
    client = Client(engine)
    outputs = client.send(ASK)
    clock.now += 1000
    assert engine.health().ready
    await engine.control.resume()
    await client.ends(outputs)
    assert outputs.tokens == run_alone(small_model, ASK).tokens
    await engine.stop()
