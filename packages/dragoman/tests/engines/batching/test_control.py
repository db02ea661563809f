"""Control of a running engine (pause, sleep, new weights) and its effect on running
sequences.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from msgspec.structs import replace

from dragoman.core.encoder_requests import EmbedRequest
from dragoman.core.errors import EngineError, Overloaded, RequestError, Unsupported
from dragoman.core.events import FinishReason
from dragoman.core.token_engine import Ended, Failed, TokenRequest, WeightVersionSet
from dragoman.core.weight_updates import WeightHistory, WeightsInMemory, WeightsOnDisk
from dragoman.engines.batching import BlockFiles, EngineConfig, SchedulerConfig, build_rng
from dragoman.engines.tiny import TinyEngine, find_bundled_model
from dragoman.engines.tiny.llama import Llama, read_model

from ..harness import GREEDY, ROOM, Client, Outputs, run_alone, run_client
from ..tiny.models import write_model, write_tensors

PROMPT = tuple(np.random.default_rng(2).integers(0, 96, 40).tolist())
ASK = TokenRequest(id="a", prompt=PROMPT, max_tokens=8, sampling=GREEDY)
LONG = replace(ASK, id="long", max_tokens=900)
ABORTED = FinishReason.ABORT


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same shapes with other weights."""
    return write_model(tmp_path_factory.mktemp("other"), seed=1)


@pytest_asyncio.fixture
async def client(small_model: Llama) -> AsyncGenerator[Client]:
    engine = TinyEngine(
        small_model, EngineConfig(max_model_len=1024, num_kv_tokens=4096), build_rng
    )
    async with run_client(engine) as client:
        yield client


def versions(outputs: Outputs) -> list[str]:
    return [output.version for output in outputs if isinstance(output, WeightVersionSet)]


async def test_pause_abort_ends_running_and_rejects_new_requests(small_model: Llama) -> None:
    # No machine is so busy that this request ends before it is aborted.
    endless = replace(ASK, id="endless", max_tokens=30_000)
    config = EngineConfig(max_model_len=32_000, num_kv_tokens=32_000)
    async with run_client(TinyEngine(small_model, config, build_rng)) as client:
        steering = client.engine.control
        outputs = client.send(endless)
        await client.until(outputs, tokens=3)
        await steering.pause("abort")
        assert outputs.end == Ended("endless", ABORTED)
        assert 3 <= len(outputs.tokens) < 30_000
        with pytest.raises(Overloaded, match="paused") as refused:
            client.send(ASK)
        assert (refused.value.status, refused.value.code) == (503, "engine_paused")
        assert client.engine.health().ready
        await steering.resume()
        assert len((await client.ask(ASK)).tokens) == 8


async def test_pause_keep_freezes_requests_and_preserves_tokens(
    client: Client, small_model: Llama
) -> None:
    steering = client.engine.control
    outputs = client.send(replace(LONG, max_tokens=200))
    await client.until(outputs, tokens=3)
    await steering.pause("keep")
    await asyncio.sleep(0)
    count = len(outputs.tokens)
    late = client.send(ASK)
    await client.engine.run_between_steps(lambda _: None)
    assert (len(outputs.tokens), late, steering.is_paused) == (count, [], True)
    await steering.resume()
    await client.ends(outputs, late)
    assert outputs.tokens == run_alone(small_model, replace(LONG, max_tokens=200)).tokens


async def test_pause_wait_lets_running_requests_finish(client: Client) -> None:
    outputs = client.send(LONG)
    await client.until(outputs, tokens=1)
    await client.engine.control.pause("wait")
    assert outputs.end == Ended("long", FinishReason.LENGTH)
    with pytest.raises(Overloaded):
        client.send(ASK)


async def test_pause_wait_is_cancelled_by_resume(client: Client) -> None:
    outputs = client.send(LONG)
    await client.until(outputs, tokens=1)
    pausing = asyncio.create_task(client.engine.control.pause("wait"))
    await asyncio.sleep(0)
    await client.engine.control.resume()
    await client.ends(outputs)
    await pausing
    assert not client.engine.control.is_paused
    assert (await client.ask(ASK)).end


@pytest.mark.parametrize("scored", [False, True])
async def test_abort_all_ends_unstarted_requests(client: Client, scored: bool) -> None:
    await client.engine.control.pause("keep")
    outputs = client.send(replace(ASK, prompt_logprobs=0 if scored else None))
    assert await client.engine.control.abort_all() == 1
    assert [type(output).__name__ for output in outputs] == [
        "Scheduled",
        *["PromptLogprobs"] * scored,
        "Ended",
    ]


async def test_sleep_clears_cache_and_holds_requests_until_wake_up(client: Client) -> None:
    steering = client.engine.control
    await client.ask(ASK)
    assert client.engine.count_cached_tokens(PROMPT, "") == 32
    await steering.sleep(1)
    assert (steering.sleep_level, client.engine.count_cached_tokens(PROMPT, "")) == (1, 0)
    outputs = client.send(ASK)
    await steering.resume()
    await client.engine.run_between_steps(lambda _: None)
    assert outputs == [], "resuming does not wake it"
    await steering.wake_up()
    await client.ends(outputs)
    assert outputs.cached == [0]


async def test_sleep_level_2_unsupported_raises_without_pausing(
    client: Client,
) -> None:
    outputs = client.send(LONG)
    with pytest.raises(Unsupported, match="level 1"):
        await client.engine.control.sleep(2)
    await client.until(outputs, tokens=5)
    assert not client.engine.control.is_paused


def on_disk(directory: Path) -> WeightsOnDisk:
    return WeightsOnDisk(str(directory))


def one_file(directory: Path) -> WeightsOnDisk:
    return WeightsOnDisk(str(directory / "model.safetensors"))


def in_the_body(directory: Path) -> WeightsInMemory:
    return WeightsInMemory(((directory / "model.safetensors").read_bytes(),))


@pytest.mark.parametrize("weights", [on_disk, one_file, in_the_body])
async def test_update_weights_matches_freshly_loaded_model(
    client: Client, other: Path, weights: Callable[[Path], WeightsInMemory | WeightsOnDisk]
) -> None:
    before = await client.ask(ASK)
    assert await client.engine.control.update_weights(weights(other), "step-1") == "step-1"
    after = await client.ask(ASK)
    assert after.tokens == run_alone(read_model(other), ASK).tokens != before.tokens
    assert (versions(before), versions(after), after.cached) == (["default"], ["step-1"], [0])


async def test_update_weights_recomputes_running_sequence(client: Client, other: Path) -> None:
    outputs = client.send(replace(LONG, max_tokens=300))
    await client.until(outputs, tokens=20)
    await client.engine.control.update_weights(on_disk(other))
    await client.ends(outputs)
    assert versions(outputs) == ["default", "default+1"]
    place = outputs.index(WeightVersionSet("long", "default+1"))
    old = Outputs(outputs[:place]).tokens
    rest = TokenRequest(id="b", prompt=(*PROMPT, *old), max_tokens=300 - len(old), sampling=GREEDY)
    assert Outputs(outputs[place:]).tokens == run_alone(read_model(other), rest).tokens


async def test_update_weights_changes_embedder_vectors(client: Client, other: Path) -> None:
    engine = client.engine
    assert isinstance(engine, TinyEngine)
    await engine.embedder.start()
    before = await engine.embedder.embed(EmbedRequest("m", (PROMPT,)))
    await engine.control.update_weights(on_disk(other))
    after = await engine.embedder.embed(EmbedRequest("m", (PROMPT,)))
    await engine.embedder.stop()
    assert before.vectors != after.vectors


async def test_update_weights_invalid_raises_and_keeps_old_weights(
    client: Client, other: Path, tmp_path: Path
) -> None:
    steering, expected = client.engine.control, (await client.ask(ASK)).tokens
    good = (other / "model.safetensors").read_bytes()
    write_tensors(
        tmp_path / "model.safetensors", {"model.embed_tokens.weight": np.zeros((3, 3), np.float32)}
    )
    wrong: dict[str, WeightsInMemory | WeightsOnDisk] = {
        "model.embed_tokens.weight has shape": WeightsOnDisk(str(tmp_path)),
        "contains no safetensors": WeightsInMemory(()),
        "not a safetensors file": WeightsInMemory((b"\x80\x04.",)),
        "not a safetensors file: 'utf-8'": WeightsInMemory((struct.pack("<Q", 7) + b'{"\xff":1}',)),
        "is not at the offset": WeightsInMemory((good[:-1],)),
        "what was sent contains model.* twice": WeightsInMemory((good, good)),
        "contains no": WeightsOnDisk(str(tmp_path / "nowhere")),
    }
    for message, weights in wrong.items():
        with pytest.raises(RequestError, match=message):
            await steering.update_weights(weights, "bad")
    assert steering.weight_version == "default"
    again = await client.ask(ASK)
    assert (again.tokens, versions(again)) == (expected, ["default"])


async def test_updated_weights_survive_engine_restart(client: Client, other: Path) -> None:
    await client.engine.control.update_weights(on_disk(other), "two")
    await client.engine.stop()
    with pytest.raises(EngineError, match="not running"):
        await client.engine.control.update_weights(on_disk(other))
    await client.engine.start()
    outputs = await client.ask(ASK)
    assert (outputs.tokens, versions(outputs)) == (
        run_alone(read_model(other), ASK).tokens,
        ["two"],
    )


async def test_pending_control_call_fails_on_engine_stop(client: Client) -> None:
    outputs = client.send(LONG)
    pausing = asyncio.create_task(client.engine.control.pause("wait"))
    await client.until(outputs, tokens=1)
    await client.engine.stop()
    with pytest.raises(EngineError, match="shutting down"):
        await pausing
    assert isinstance(outputs.end, Failed)


async def test_block_files_match_weights_of_their_computation(
    small_model: Llama, other: Path, tmp_path: Path
) -> None:
    """Checked before and after a restart of the engine, and in a new process."""
    config = EngineConfig(max_model_len=1024, num_kv_tokens=4096)
    ask = replace(ASK, max_tokens=20)
    old = run_alone(small_model, ask).tokens
    new = run_alone(read_model(other), ask).tokens
    engine = TinyEngine(small_model, config, build_rng, files=BlockFiles(tmp_path, ROOM))
    async with run_client(engine) as client:
        assert (await client.ask(ask)).tokens == old
        await engine.stop()
        await engine.start()
        await engine.control.update_weights(on_disk(other))
        assert (await client.ask(ask)).tokens == new
        await engine.stop()
        await engine.start()
        assert (await client.ask(ask)).tokens == new
    async with run_client(
        TinyEngine(small_model, config, build_rng, files=BlockFiles(tmp_path, ROOM))
    ) as client:
        outputs = await client.ask(ask)
    assert (outputs.tokens, outputs.cached) == (old, [32])


async def test_prompt_logprobs_use_single_weight_version_during_update(
    small_model: Llama, other: Path
) -> None:
    """Also if the weights change while a long prompt is prefilled in chunks."""
    limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16)
    ask = replace(ASK, prompt=PROMPT * 20, prompt_logprobs=0, max_tokens=1)
    old, new = (
        run_alone(model, ask, limits).prompt[0].logprobs
        for model in (small_model, read_model(other))
    )
    engine = TinyEngine(
        small_model,
        EngineConfig(max_model_len=1024, num_kv_tokens=4096, scheduler=limits),
        build_rng,
    )
    async with run_client(engine) as client:
        outputs = client.send(ask)
        while not outputs:  # noqa: ASYNC110 - that it is read is said by no token
            await asyncio.sleep(0)
        await engine.control.update_weights(on_disk(other))
        await client.ends(outputs)
    assert outputs.prompt[0].logprobs in (old, new)


async def test_lost_weights_are_not_replaced_by_initial_weights(
    client: Client, small_model: Llama, other: Path
) -> None:
    steering = client.engine.control
    weights = WeightsOnDisk(str(other))
    await steering.update_weights(weights)
    await steering.update_weights(weights, "step-7")
    history = steering.history
    assert history == WeightHistory("step-7", 2, "step-7")
    successor = TinyEngine(
        read_model(find_bundled_model()), EngineConfig(1024, num_kv_tokens=4096), build_rng
    )
    async with run_client(successor) as heir:
        steering = successor.control
        await steering.succeed(history)
        assert steering.weight_version == "default"
        # A later process knows it too.
        assert steering.history == WeightHistory("default", 2, "step-7")
        for disturb in (steering.resume, steering.sleep, steering.wake_up):
            await disturb()
            with pytest.raises(
                Overloaded, match="lost the weights of version 'step-7'"
            ) as rejected:
                heir.send(ASK)
            assert rejected.value.code == "weights_lost"
        await steering.pause("keep")
        # The third update since the start of the server: no name is used for two sets
        # of weights.
        weights = WeightsOnDisk(str(find_bundled_model()))
        assert await steering.update_weights(weights) == "default+3"
        outputs = heir.send(ASK)
        await steering.resume()
        await heir.ends(outputs)
        assert versions(outputs) == ["default+3"]


async def test_initial_weights_with_reassigned_version_are_served(small_model: Llama) -> None:
    for history, version in (
        (WeightHistory("step-0"), "step-0"),
        (WeightHistory("default", 2, "step-2"), "step-3"),
    ):
        engine = TinyEngine(
            small_model, EngineConfig(max_model_len=1024, num_kv_tokens=4096), build_rng
        )
        async with run_client(engine) as client:
            await engine.control.succeed(history)
            if engine.rejection is not None:
                await engine.control.set_weight_version("step-3")
            assert versions(await client.ask(ASK)) == [version]
            assert engine.control.history == WeightHistory(version, history.updates)
