"""Linear layers with packed weights on a CPU, and layers that do not support them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")

from dragoman.core.token_engine import TokenRequest
from dragoman.engines.transformers.backend import torch
from dragoman.engines.transformers.load import build_paged_model
from dragoman.engines.transformers.load_network import TransformersOptions, load_network
from dragoman.engines.transformers.packed_linears import PackedLinears

from ..harness import GREEDY, run_alone
from .test_models import generate_alone, network

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not torch.backends.mkldnn.is_available(), reason="needs a torch with oneDNN"
    ),
]

_MAPS = Path("/proc/self/maps")
PROMPT = list(range(3, 40))


def generate(model: Any) -> list[int]:
    return run_alone(
        model, TokenRequest(id="a", prompt=tuple(PROMPT), max_tokens=8, sampling=GREEDY)
    ).tokens


@pytest.mark.parametrize("kind", ["llama", "qwen2"])  # without and with biases
@pytest.mark.parametrize("num_rows", [1, 7, 32, 100])
def test_packed_linears_match_plain_linears(kind: str, num_rows: int) -> None:
    plain = network(kind)
    packed = network(kind)
    PackedLinears(packed).pack()
    with torch.inference_mode():
        states = torch.randn(1, num_rows, 32)
        for name in ("self_attn.q_proj", "mlp.gate_proj"):
            expected, found = (
                linear_model.model.layers[1].get_submodule(name)(states)
                for linear_model in (plain, packed)
            )
            assert torch.allclose(found, expected, atol=1e-5)


def test_pack_frees_plain_weights_and_unpack_restores_them() -> None:
    loaded = network("llama")
    weights = {name: tensor.clone() for name, tensor in loaded.state_dict().items()}
    model, _ = build_paged_model(loaded)
    assert {loaded.model.layers[0].mlp.up_proj.weight.numel(), loaded.lm_head.weight.numel()} == {0}
    model.linears.unpack()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in loaded.state_dict().items())
    assert generate(model) == generate_alone(network("llama"), PROMPT, 8)


def test_pack_tied_head_keeps_embedding() -> None:
    loaded = network("gemma2")
    model, _ = build_paged_model(loaded)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert loaded.lm_head.weight.shape == (96, 32)
    assert "forward" in vars(loaded.lm_head)
    assert generate(model) == generate_alone(network("gemma2"), PROMPT, 8)


def test_pack_skips_layers_with_directly_read_weights() -> None:
    def compute(states: Any) -> Any:
        return torch.nn.functional.linear(
            mlp.act_fn(mlp.gate_proj(states)) * mlp.up_proj(states), mlp.down_proj.weight
        )

    loaded = network("llama")
    mlp = loaded.model.layers[2].mlp
    mlp.forward = compute
    model, _ = build_paged_model(loaded)
    assert "forward" not in vars(mlp.down_proj)
    assert all(parameter.numel() for parameter in loaded.parameters())
    assert generate(model) == generate_alone(network("llama"), PROMPT, 8)


@pytest.mark.skipif(not _MAPS.exists(), reason="needs /proc")
def test_pack_unmaps_checkpoint_file(tmp_path: Path) -> None:
    network("llama").save_pretrained(tmp_path)
    model = load_network(tmp_path, TransformersOptions(device="cpu", dtype="float32"))
    assert str(tmp_path) in _MAPS.read_text()
    build_paged_model(model)
    assert str(tmp_path) not in _MAPS.read_text()
