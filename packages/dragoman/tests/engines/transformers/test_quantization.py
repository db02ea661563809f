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
from dragoman.engines.transformers.backend import safetensors, torch
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
    edit_config(saved, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(EngineError, match="already quantized"):
        load_network(saved, options(quantization="torchao"))


@pytest.mark.parametrize("device", ["cuda:77", "abacus", "cpu,cuda"])
def test_load_on_missing_device_raises(device: str, saved: Path) -> None:
    with pytest.raises(EngineError, match="cannot be used"):
        transformers.load(saved, EngineLimits(), TransformersOptions(device=device))


def quantize_fp8(directory: Path) -> None:
    """Replace the weights of linear layers by float8 with scales, as NVIDIA ModelOpt
    does.
    """
    path = directory / "model.safetensors"
    tensors: dict[str, Any] = {}
    for name, tensor in safetensors.torch.load_file(path).items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        scale = tensor.abs().max() / 448
        tensors[name] = (tensor / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = scale
        tensors[name.replace("weight", "input_scale")] = torch.tensor(0.01)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def edit_config(directory: Path, **fields: object) -> None:
    path = directory / "config.json"
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **fields}))


@pytest.mark.parametrize(
    ("file", "method", "message"),
    [
        ("config.json", "modelopt", "'modelopt' of config.json is not supported"),
        ("config.json", "abacus", "'abacus' of config.json is not supported"),
        ("hf_quant_config.json", "FP8", "'FP8' of hf_quant_config.json is not supported"),
        ("", "", r"would ignore .*_scale, .* quantization is not supported"),
    ],
)
def test_load_unknown_quantization_raises(
    file: str, method: str, message: str, saved: Path
) -> None:
    quantize_fp8(saved)
    if file == "config.json":
        edit_config(saved, quantization_config={"quant_method": method})
    elif file:
        declared = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": method}}
        (saved / file).write_bytes(msgspec.json.encode(declared))
    with pytest.raises(EngineError, match=message):
        load_network(saved, options())


def add_tensors(directory: Path, *names: str) -> None:
    path = directory / "model.safetensors"
    tensors = safetensors.torch.load_file(path) | {name: torch.ones(1) for name in names}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "name",
    ["q_proj.weight_scale_inv", "q_proj.scales", "o_proj.weight_zero_point", "k_proj.qzeros"],
)
def test_load_unused_scale_of_used_weight_raises(name: str, saved: Path) -> None:
    add_tensors(saved, f"model.layers.0.self_attn.{name}")
    with pytest.raises(EngineError, match=name):
        load_network(saved, options())


def test_load_unused_scale_of_cache_or_unused_layer_passes(saved: Path) -> None:
    unused = "model.layers.99.eh_proj"
    add_tensors(
        saved, "model.layers.0.self_attn.k_proj.k_scale", f"{unused}.weight", f"{unused}.scales"
    )
    (saved / "hf_quant_config.json").write_text(
        '{"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}}'
    )
    load_network(saved, options())
