"""Quantized models with paging generate what the library generates with the same
weights; others are rejected.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")

import msgspec

from dragoman.core.errors import EngineError, Unsupported
from dragoman.core.token_engine import TokenRequest
from dragoman.engines import transformers
from dragoman.engines.batching import EngineLimits
from dragoman.engines.transformers.load import build_paged_model
from dragoman.engines.transformers.load_network import TransformersOptions, load_network

from ..harness import GREEDY, run_alone
from .test_models import generate_alone, network

pytestmark = [
    pytest.mark.torch,
    # Warnings of these libraries about each other.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

PROMPT = list(range(3, 43))


def options(**more: Any) -> TransformersOptions:
    return TransformersOptions(dtype="float32", device="cpu", **more)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    network("llama", hidden_size=64, intermediate_size=128, head_dim=16).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("method", ["torchao", "bitsandbytes"])
def test_quantized_model_matches_library(method: str, saved: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate")
    pytest.importorskip(method, reason=f"needs {method}")
    expected = generate_alone(load_network(saved, options(quantization=method)), PROMPT, 8)
    full = generate_alone(load_network(saved, options()), PROMPT, 8)
    model, _ = build_paged_model(load_network(saved, options(quantization=method)))
    ask = TokenRequest(id="a", prompt=tuple(PROMPT), max_tokens=8, sampling=GREEDY, logprobs=0)
    outputs = run_alone(model, ask)
    plain = run_alone(build_paged_model(load_network(saved, options()))[0], ask)
    assert (outputs.tokens, plain.tokens) == (expected, full)
    assert [one.logprob for one in outputs.scores if one] != [
        one.logprob for one in plain.scores if one
    ]
    with pytest.raises(Unsupported, match="quantized"):
        model.prepare_weights({})  # pyright: ignore[reportArgumentType] - it is not looked at


def test_load_network_quantized_checkpoint_rejects_quantization(saved: Path) -> None:
    path = saved / "config.json"
    config = msgspec.json.decode(path.read_bytes())
    path.write_bytes(
        msgspec.json.encode({**config, "quantization_config": {"quant_method": "gptq", "bits": 4}})
    )
    with pytest.raises(EngineError, match="already quantized"):
        load_network(saved, options(quantization="torchao"))


@pytest.mark.parametrize("device", ["cuda:77", "abacus", "cpu,cuda"])
def test_load_on_missing_device_raises(device: str, saved: Path) -> None:
    with pytest.raises(EngineError, match="cannot be used"):
        transformers.load(saved, EngineLimits(), TransformersOptions(device=device))
