"""The weights of a network in torch are replaced while it serves, and freed while it
sleeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")

from dragoman.core.errors import Overloaded, RequestError
from dragoman.core.token_engine import TokenRequest
from dragoman.core.weight_updates import WeightsInMemory, WeightsOnDisk
from dragoman.engines.batching import BatchingEngine, EngineConfig, build_rng
from dragoman.engines.transformers.backend import safetensors, torch
from dragoman.engines.transformers.load import build_paged_model
from dragoman.engines.transformers.load_network import load_network

from ..harness import GREEDY, Outputs, run_alone, run_client
from . import vlms
from .test_models import EXPERTS, ON_A_CPU, network

pytestmark = pytest.mark.torch

ASK = TokenRequest(id="a", prompt=tuple(range(3, 40)), max_tokens=8, sampling=GREEDY, logprobs=0)


def change_weights(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def pack_weights(model: Any, *without: str, **more: Any) -> WeightsInMemory:
    state = {
        name: tensor.clone() for name, tensor in model.state_dict().items() if name not in without
    }
    return WeightsInMemory((safetensors.torch.save(state | more),))


def engine(model: Any) -> BatchingEngine:
    return BatchingEngine(
        build_paged_model(model)[0], EngineConfig(max_model_len=256, num_kv_tokens=1024), build_rng
    )


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "qwen3_moe"])
async def test_update_weights_matches_fresh_network(kind: str, tmp_path: Path) -> None:
    other = change_weights(network(kind))
    expected = run_alone(build_paged_model(change_weights(network(kind)))[0], ASK).scores
    (tmp_path / "w.safetensors").write_bytes(pack_weights(other).files[0])
    async with run_client(engine(network(kind))) as client:
        assert (await client.ask(ASK)).scores != expected
        await client.engine.control.update_weights(WeightsOnDisk(str(tmp_path)))
        assert (await client.ask(ASK)).scores == expected


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "gpt_oss", "llava"])
async def test_update_from_saved_checkpoint_matches_fresh_load(kind: str, tmp_path: Path) -> None:
    """The names of a saved file are those from which a server starts."""
    first = tmp_path / "first"
    if kind == "llava":
        vlms.save(kind, first)
    else:
        network(kind, **EXPERTS).save_pretrained(first)
    other = change_weights(load_network(first, ON_A_CPU))
    other.save_pretrained(tmp_path / "second")
    expected = run_alone(build_paged_model(load_network(tmp_path / "second", ON_A_CPU))[0], ASK)
    async with run_client(engine(load_network(first, ON_A_CPU))) as client:
        before = await client.ask(ASK)
        await client.engine.control.update_weights(WeightsOnDisk(str(tmp_path / "second")))
        after = await client.ask(ASK)
        await client.engine.control.update_weights(WeightsOnDisk(str(first)))
        again = await client.ask(ASK)
    assert list_logprobs(after) == pytest.approx(list_logprobs(expected), abs=1e-4)
    assert list_logprobs(again) == pytest.approx(list_logprobs(before), abs=1e-4)
    assert list_logprobs(after) != pytest.approx(list_logprobs(before), abs=1e-2)


def list_logprobs(outputs: Outputs) -> list[float]:
    return [score.logprob for score in outputs.scores if score]


async def test_update_from_incomplete_checkpoint_raises(tmp_path: Path) -> None:
    network("mixtral", **EXPERTS).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    name = next(name for name in tensors if "experts" in name)
    model = load_network(tmp_path, ON_A_CPU)
    messages = {
        "no tensor .*experts|cannot load": {k: v for k, v in tensors.items() if k != name},
        "has shape|cannot load": tensors | {name: torch.zeros(3)},
        "unexpected tensors.*strange": tensors | {"strange": torch.zeros(1)},
    }
    async with run_client(engine(model)) as client:
        before = (await client.ask(ASK)).tokens
        for message, wrong in messages.items():
            with pytest.raises(RequestError, match=message):
                await client.engine.control.update_weights(
                    WeightsInMemory((safetensors.torch.save(wrong),))
                )
        assert (await client.ask(ASK)).tokens == before


async def test_update_weights_mismatch_raises_and_keeps_weights() -> None:
    model = network("gemma2")  # its head is its embedding
    name = "model.layers.1.mlp.up_proj.weight"
    async with run_client(engine(network("gemma2"))) as client:
        before = (await client.ask(ASK)).tokens
        wrong = {
            f"no tensor {name}": pack_weights(model, name),
            f"{name} has shape": pack_weights(model, **{name: torch.zeros(3)}),
            "unexpected tensors.*strange": pack_weights(model, strange=torch.zeros(1)),
            "one tensor in this model, but differ": pack_weights(
                model, **{"lm_head.weight": torch.zeros(96, 32)}
            ),
            "has dtype I64": pack_weights(model, **{name: torch.zeros(48, 32, dtype=torch.int64)}),
        }
        for message, weights in wrong.items():
            with pytest.raises(RequestError, match=message):
                await client.engine.control.update_weights(weights)
        assert (await client.ask(ASK)).tokens == before
        await client.engine.control.update_weights(pack_weights(model, "lm_head.weight"))
        assert (await client.ask(ASK)).tokens == before


async def test_sleep_level_2_frees_weights_until_update() -> None:
    model = network("llama")
    weights = pack_weights(model)
    async with run_client(engine(model)) as client:
        before = (await client.ask(ASK)).tokens
        await client.engine.control.sleep(2)
        assert sum(parameter.numel() for parameter in model.parameters()) == 0
        waiting = client.send(ASK)
        await client.engine.control.wake_up()
        with pytest.raises(Overloaded, match="discarded"):
            client.send(TokenRequest(id="b", prompt=(1,), max_tokens=1))
        assert waiting == []
        await client.engine.control.update_weights(weights)
        await client.ends(waiting)
        assert (await client.ask(ASK)).tokens == waiting.tokens == before
