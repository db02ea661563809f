"""The weights of a model of mlx-lm are replaced while it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlx.core", reason="needs mlx")
pytest.importorskip("mlx_lm", reason="needs mlx-lm")

from dragoman.core.errors import RequestError, Unsupported
from dragoman.core.token_engine import TokenRequest
from dragoman.core.weight_updates import WeightsInMemory, WeightsOnDisk
from dragoman.engines import mlx
from dragoman.engines.batching import BatchingEngine, EngineConfig, EngineLimits, build_rng
from dragoman.engines.mlx import tree_flatten

from ..harness import GREEDY, run_alone, run_client
from ..tiny.models import make_model, write_model
from .test_models import network

pytestmark = pytest.mark.mlx

ASK = TokenRequest(id="a", prompt=tuple(range(3, 40)), max_tokens=8, sampling=GREEDY)


async def test_update_weights_matches_numpy(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    write_model(tmp_path / "old")
    expected = run_alone(make_model(tmp_path / "new", seed=1), ASK).tokens
    engine = mlx.load(tmp_path / "old", EngineLimits(), dtype="float32")
    async with run_client(engine) as client:
        assert (await client.ask(ASK)).tokens != expected
        with pytest.raises(RequestError, match="not a safetensors file"):
            await engine.control.update_weights(WeightsInMemory((b"\x80\x04.",)))
        await engine.control.update_weights(WeightsOnDisk(str(tmp_path / "new")))
        assert (await client.ask(ASK)).tokens == expected
        await engine.control.sleep(1)
        await engine.control.wake_up()
        assert (await client.ask(ASK)).tokens == expected
        with pytest.raises(Unsupported):
            await engine.control.sleep(2)


EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}


def save_by_expert(model: Any, path: Path) -> None:
    """Save weights as transformers does, with a tensor for each expert."""
    tensors: dict[str, Any] = {}
    for name, value in tree_flatten(model.parameters()):
        if "switch_mlp" not in name:
            tensors[name] = value
            continue
        for number in range(len(value)):
            tensors[name.replace("switch_mlp", f"experts.{number}")] = value[number]
    mlx.mx.save_safetensors(str(path), tensors)


@pytest.mark.parametrize(
    ("kind", "fields", "dtype"),
    [("qwen3_moe", EXPERTS, mlx.mx.float32), ("llama", {}, mlx.mx.bfloat16)],
)
async def test_update_from_saved_file_matches_fresh_network(
    kind: str, fields: dict[str, Any], dtype: Any, tmp_path: Path
) -> None:
    other = network(kind, seed=8, **fields)
    other.set_dtype(dtype)
    save_by_expert(other, tmp_path / "model.safetensors")
    expected = run_alone(build_model(other), ASK).tokens
    first = network(kind, **fields)
    first.set_dtype(dtype)
    engine = BatchingEngine(build_model(first), EngineConfig(256, 1024), build_rng)
    async with run_client(engine) as client:
        assert (await client.ask(ASK)).tokens != expected
        await engine.control.update_weights(WeightsOnDisk(str(tmp_path)))
        assert (await client.ask(ASK)).tokens == expected


def build_model(loaded: Any) -> mlx.MlxModel:
    return mlx.build_paged_model(loaded, vocab=96, max_positions=512)[0]
