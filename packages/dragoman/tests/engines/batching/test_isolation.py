"""A step that raises fails the sequence that caused it and no other; a model that can
compute nothing is a failed engine.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from msgspec.structs import replace

from dragoman.core.errors import EngineError, Overloaded
from dragoman.core.request import Sampling
from dragoman.core.token_engine import Failed, TokenRequest
from dragoman.engines.batching import BatchingEngine, EngineConfig, SchedulerConfig, build_rng
from dragoman.engines.tiny.llama import Llama
from dragoman.engines.tiny.paged_llama import PagedLlama

from ..faults import FaultyModel, NanModel, raise_for
from ..harness import (
    GREEDY,
    AllowedTokensMatcher,
    Client,
    Outputs,
    StepperHarness,
    run_alone,
    run_client,
)

RNG = np.random.default_rng(5)
MESSAGE = "The engine failed while computing a step: index out of range"


def build_asks(count: int) -> list[TokenRequest]:
    """Build requests of different lengths; half of them share a prefix, half sample."""
    shared = tuple(RNG.integers(0, 96, 32).tolist())
    return [
        TokenRequest(
            id=str(number),
            prompt=(*(shared if number % 2 else ()), *RNG.integers(0, 96, 3 + number % 7).tolist()),
            max_tokens=6,
            sampling=GREEDY if number % 4 < 2 else Sampling(seed=number),
            prompt_logprobs=0 if number % 5 == 0 else None,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("position", [0, 5, 38, 41])
@pytest.mark.parametrize("after_forward", [False, True])
def test_step_fault_fails_only_its_sequence(
    position: int, after_forward: bool, small_model: Llama
) -> None:
    asks = build_asks(16)
    asks[3] = replace(asks[3], prompt=(*asks[3].prompt[:32], *range(6)))
    model = FaultyModel(
        PagedLlama(small_model), raise_for("3", position=position), after_forward=after_forward
    )
    bench = StepperHarness(model, SchedulerConfig(max_num_batched_tokens=40))
    streams = [bench.add(ask) for ask in asks]
    bench.finish_despite_faults()
    assert streams[3].end == Failed("3", MESSAGE)
    assert len(streams[3].tokens) == max(0, position - 37)
    for ask, stream in zip(asks, streams, strict=True):
        if ask.id != "3":
            assert stream.answer == run_alone(small_model, ask).answer
            assert len(stream.cached) == 1


def test_several_faults_fail_all_their_sequences(small_model: Llama) -> None:
    asks = build_asks(64)
    bad = {"0", "31", "32", "63"}
    model = FaultyModel(PagedLlama(small_model), raise_for(*bad, position=4))
    bench = StepperHarness(model, SchedulerConfig(max_num_batched_tokens=2048))
    streams = [bench.add(ask) for ask in asks]
    bench.finish_despite_faults()
    failed = {ask.id for ask, one in zip(asks, streams, strict=True) if isinstance(one.end, Failed)}
    assert failed == {"0", "31", "32", "63"}
    assert model.num_faults < 40


def test_fault_of_whole_batch_fails_no_sequence(small_model: Llama) -> None:
    """Each half of the step fits, as after an out-of-memory error."""
    asks = build_asks(12)
    model = FaultyModel(
        PagedLlama(small_model),
        lambda chunks: MemoryError("out of memory") if len(chunks) > 8 else None,
    )
    bench = StepperHarness(model, SchedulerConfig(max_num_seqs=12, max_num_batched_tokens=512))
    streams = [bench.add(replace(ask, max_tokens=2)) for ask in asks[:9]]
    bench.finish_despite_faults()
    assert [type(stream.end).__name__ for stream in streams] == ["Ended"] * 9


def test_isolation_in_small_pool_ends(small_model: Llama) -> None:
    asks = [replace(ask, max_tokens=40) for ask in build_asks(8)]
    model = FaultyModel(PagedLlama(small_model), raise_for("6", position=50))
    bench = StepperHarness(
        model, SchedulerConfig(max_num_batched_tokens=20), num_kv_tokens=160, max_model_len=160
    )
    streams = [bench.add(ask) for ask in asks]
    bench.finish_despite_faults()
    ends = [ask.id for ask, one in zip(asks, streams, strict=True) if isinstance(one.end, Failed)]
    assert ends == (["6"] if len(asks[6].prompt) + 40 > 50 else [])
    for ask, stream in zip(asks, streams, strict=True):
        if ask.id != "6":
            assert stream.answer == run_alone(small_model, ask).answer


def test_nan_fails_only_its_sequence_and_is_not_cached(small_model: Llama) -> None:
    asks = build_asks(64)
    asks[31] = replace(asks[31], prompt=tuple(range(40)))
    bench = StepperHarness(
        NanModel(PagedLlama(small_model), "31"),
        SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=2048),
    )
    streams = [bench.add(ask) for ask in asks]
    bench.finish()
    assert streams[31].end == Failed("31", "The model returned invalid probabilities.")
    for ask, stream in zip(asks, streams, strict=True):
        if ask.id != "31":
            assert stream.answer == run_alone(small_model, ask).answer
    again = replace(asks[31], id="again")
    repeated = bench.add(again)
    bench.finish()
    assert repeated.answer == run_alone(small_model, again).answer


def test_broken_grammars_fail_only_their_sequences(small_model: Llama) -> None:
    asks = build_asks(64)
    broken = {
        str(number): replace(
            asks[number], matcher=AllowedTokensMatcher([{3}, {4}, {5}, {6}], fail_at=fail_at)
        )
        for number, fail_at in ((0, 0), (17, 1), (63, 3))
    }
    bench = StepperHarness(
        small_model, SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=2048)
    )
    streams = [bench.add(broken.get(ask.id, ask)) for ask in asks]
    bench.finish()
    for ask, stream in zip(asks, streams, strict=True):
        if ask.id in broken:
            assert stream.end == Failed(ask.id, "The grammar of this request failed.")
        else:
            assert stream.answer == run_alone(small_model, ask).answer


def test_aborted_suspect_ends_isolation(small_model: Llama) -> None:
    asks = build_asks(4)
    model = FaultyModel(PagedLlama(small_model), raise_for("1"))
    bench = StepperHarness(model)
    streams = [bench.add(ask) for ask in asks]
    with pytest.raises(RuntimeError) as raised:
        bench.step()
    assert bench.stepper.recover(raised.value) == []
    bench.stepper.scheduler.remove(bench.sequences[1])
    bench.finish_despite_faults()
    assert [type(stream.end).__name__ for stream in streams] == [
        *("Ended", "NoneType", "Ended", "Ended")
    ]


def build_dead_engine(model: Llama) -> tuple[BatchingEngine, FaultyModel]:
    """Build an engine whose every step raises, as after a CUDA error."""
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    faulty = FaultyModel(PagedLlama(model), lambda _: error)
    return BatchingEngine(faulty, EngineConfig(512, 2048), build_rng), faulty


async def test_dead_model_fails_engine_and_all_requests(small_model: Llama) -> None:
    engine, faulty = build_dead_engine(small_model)
    await engine.start()
    client = Client(engine)
    streams: list[Outputs] = []
    for ask in build_asks(70):
        # The first steps may fail while the rest is sent.
        with suppress(Overloaded):
            streams.append(client.send(ask))
    await client.ends(*streams)
    assert {one.end.message for one in streams if isinstance(one.end, Failed)} == {
        "The engine failed while computing a step: "
        "CUDA error: an illegal memory access was encountered"
    }
    health = engine.health()
    assert (health.ready, health.failed) == (False, True)
    assert "illegal memory access" in str(health.reason)
    assert faulty.num_faults == 2
    with pytest.raises(Overloaded, match="failed and is being restarted"):
        client.send(build_asks(1)[0])
    await engine.stop()


async def test_restarted_engine_serves_again(small_model: Llama) -> None:
    engine, faulty = build_dead_engine(small_model)
    (ask,) = build_asks(1)
    async with run_client(engine) as client:
        assert isinstance((await client.ask(ask)).end, Failed)
    # It is not ready while its model still cannot compute.
    with pytest.raises(EngineError, match=r"does not recover .*: CUDA error"):
        await engine.start()
    assert not engine.health().ready
    faulty.find_fault = raise_for()
    async with run_client(engine) as client:
        outputs: Outputs = await client.ask(ask)
        assert engine.health().ready
    assert outputs.answer == run_alone(small_model, ask).answer
