"""Predictions from datasheets: sizes from a config, memory limits, and the errors on
measured runs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman_check.load.request_timing import Timing
from dragoman_sim.engine.latency import StepLoad
from dragoman_sim.engine.profile import ProfileError, dumps, loads
from dragoman_sim.lab.fleet import Fleet
from dragoman_sim.lab.gpus import Gpu, find_gpu, load_gpus
from dragoman_sim.lab.model_shape import ModelShape, load_model_shape, load_models, read_model_shape
from dragoman_sim.lab.roofline import Parallelism, predict_latency, predict_profile

from .runs import log

# Billions of parameters from the model cards.
PARAMETERS = {
    "meta-llama/Llama-3.1-8B": 8.03,
    "meta-llama/Llama-3.3-70B-Instruct": 70.6,
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-8B": 8.2,
    "Qwen/Qwen3-32B": 32.8,
    "Qwen/Qwen3-30B-A3B": 30.5,
    "Qwen/Qwen3-235B-A22B": 235.0,
    "mistralai/Mistral-Small-24B-Instruct-2501": 23.6,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46.7,
    "google/gemma-3-27b-it": 27.0,
    "openai/gpt-oss-20b": 20.9,
    "openai/gpt-oss-120b": 116.8,
    "deepseek-ai/DeepSeek-V3": 671.0,
}
ACTIVE = {"Qwen/Qwen3-30B-A3B": 3.3, "Qwen/Qwen3-235B-A22B": 22.0, "deepseek-ai/DeepSeek-V3": 37.0}


def test_model_table_parameters_match_model_cards() -> None:
    assert set(load_models()) == set(PARAMETERS)
    for name, billions in PARAMETERS.items():
        assert load_model_shape(name).total_params == pytest.approx(billions * 1e9, rel=0.005)


@pytest.mark.parametrize("name", sorted(ACTIVE))
def test_moe_active_parameters_match_model_cards(name: str) -> None:
    shape = load_model_shape(name)
    active = shape.active_params + shape.head_params + shape.embedding_params
    assert active == pytest.approx(ACTIVE[name] * 1e9, rel=0.03)


def test_latent_attention_kv_is_shared_by_heads() -> None:
    shape = load_model_shape("deepseek-ai/DeepSeek-V3")
    assert shape.kv_values == 61 * (512 + 64)
    assert shape.kv_is_shared
    assert shape.dtype == "fp8"


LLAMA_4_SCOUT: dict[str, Any] = {
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "attention_chunk_size": 8192,
    "vocab_size": 202048,
}
QWEN3_NEXT: dict[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "vocab_size": 151936,
}


def test_shared_expert_absent_from_config_is_counted() -> None:
    shape = read_model_shape(LLAMA_4_SCOUT, "Llama-4-Scout")
    assert shape.total_params == pytest.approx(109e9, rel=0.02)
    active = shape.active_params + shape.head_params + shape.embedding_params
    assert active == pytest.approx(17.2e9, rel=0.01)
    # Chunks of 8192 tokens bound few contexts.
    assert shape.full_attention == 1.0


def test_interleaved_dense_layers_have_width_of_their_own() -> None:
    maverick = {**LLAMA_4_SCOUT, "num_local_experts": 128, "interleave_moe_layer_step": 2}
    shape = read_model_shape(maverick, "Llama-4-Maverick")
    assert shape.moe_layers == 24
    assert shape.total_params == pytest.approx(400e9, rel=0.02)


@pytest.mark.parametrize(
    "kinds",
    [
        {"full_attention_interval": 4},
        {"layer_types": [*["linear_attention"] * 3, "full_attention"] * 12},
    ],
)
def test_linear_attention_layers_keep_no_keys(kinds: dict[str, Any]) -> None:
    config = {**QWEN3_NEXT, "full_attention_interval": None, **kinds}
    shape = read_model_shape(config, "Qwen3-Next-80B-A3B")
    assert shape.full_attention == 0.25
    assert shape.kv_values == 12 * 2 * 2 * 256
    assert shape.total_params == pytest.approx(79.7e9, rel=0.01)


def test_linear_attention_context_costs_as_its_full_layers() -> None:
    linear = read_model_shape(QWEN3_NEXT, "linear")
    alone = {**QWEN3_NEXT, "num_hidden_layers": 12, "full_attention_interval": None}
    costs = [
        predict_latency(find_gpu("h100"), shape, Parallelism()).per_context_token
        for shape in (linear, read_model_shape(alone, "full"))
    ]
    assert costs[0] == pytest.approx(costs[1])


def test_sliding_window_layers_need_no_share_of_context() -> None:
    gemma = load_model_shape("google/gemma-3-27b-it")
    assert gemma.full_attention == pytest.approx(10 / 62)
    assert not gemma.has_sinks
    assert load_model_shape("openai/gpt-oss-20b").has_sinks


def test_fp4_experts_keep_dtype_of_other_layers() -> None:
    shape = load_model_shape("openai/gpt-oss-120b")
    assert (shape.dtype, shape.expert_dtype) == ("bf16", "fp4")
    profile = predict_profile(find_gpu("h100-sxm"), shape, name="one device")
    assert profile.model.weight_bytes == pytest.approx(67e9, rel=0.03)


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "int4"),
        (None, "bf16"),
    ],
)
def test_model_shape_dtype_from_quantization_config(
    quantization: dict[str, Any] | None, dtype: str
) -> None:
    config = {**load_models()["meta-llama/Llama-3.1-8B"], "quantization_config": quantization}
    assert read_model_shape(config, "quantized").dtype == dtype


def test_load_model_shape_from_config_file_or_directory(tmp_path: Path) -> None:
    config = {"text_config": dict(load_models()["Qwen/Qwen3-8B"]), "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (
        load_model_shape(str(tmp_path)).total_params
        == load_model_shape("Qwen/Qwen3-8B").total_params
    )
    assert load_model_shape(str(tmp_path / "config.json")).layers == 36


def test_load_model_shape_non_decoder_error_names_field(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 768}')
    with pytest.raises(ProfileError, match="num_hidden_layers"):
        load_model_shape(str(tmp_path))
    with pytest.raises(ProfileError, match=r"neither a config\.json nor a model of the table"):
        load_model_shape("org/unknown")


def test_predict_profile_oversized_model_states_memory() -> None:
    shape = load_model_shape("meta-llama/Llama-3.3-70B-Instruct")
    with pytest.raises(ProfileError, match=r"does not fit on 1 x NVIDIA H100 SXM: 141\.1 GB"):
        predict_profile(find_gpu("h100-sxm"), shape, name="too large")
    assert (
        predict_profile(
            find_gpu("h100-sxm"), shape, Parallelism(4), name="fits"
        ).engine.num_gpu_blocks
        > 10_000
    )


def test_predict_profile_without_cached_layer_raises_error() -> None:
    config = {**QWEN3_NEXT, "layer_types": ["linear_attention"] * 48}
    with pytest.raises(ProfileError, match="has no layer with attention"):
        predict_profile(find_gpu("h200"), read_model_shape(config, "linear"), name="linear")


def test_predict_profile_invalid_parallelism_rejected() -> None:
    dense = load_model_shape("Qwen/Qwen3-8B")
    moe = load_model_shape("Qwen/Qwen3-30B-A3B")
    gpu = find_gpu("h100-sxm")
    with pytest.raises(ProfileError, match="has no experts"):
        predict_profile(gpu, dense, Parallelism(1, 2, expert=True), name="dense")
    with pytest.raises(ProfileError, match="128 experts cannot be divided among 3"):
        predict_profile(gpu, moe, Parallelism(1, 3, expert=True), name="three")
    with pytest.raises(ProfileError, match="cannot be divided among 3"):
        predict_profile(gpu, dense, Parallelism(3), name="three")


def test_weights_without_operations_of_gpu_multiply_as_bf16() -> None:
    gpu = find_gpu("a100-sxm")
    latencies = [
        predict_latency(gpu, load_model_shape("Qwen/Qwen3-8B", dtype), Parallelism())
        for dtype in ("bf16", "fp8")
    ]
    # A prompt is computed as fast; decoding reads half of the bytes.
    prompts = [latency.compute_seconds(StepLoad(8192, sequences=1)) for latency in latencies]
    steps = [latency.compute_seconds(StepLoad(1, sequences=1)) for latency in latencies]
    assert prompts[1] == pytest.approx(prompts[0], rel=0.02)
    assert steps[1] < 0.7 * steps[0]


def test_gpu_table_has_sources_and_plausible_values() -> None:
    gpus = load_gpus()
    assert len(gpus) >= 12
    for gpu in gpus.values():
        assert gpu.source
        assert 10e9 < gpu.memory < 1e12
        assert 100e9 < gpu.memory_bandwidth < 20e12
        assert gpu.flops["bf16"] <= max(gpu.flops.values())


def seconds(gpu: Gpu, shape: ModelShape, parallelism: Parallelism, tokens: int) -> float:
    profile = predict_profile(gpu, shape, parallelism, name="step")
    return profile.latency.compute_seconds(StepLoad(tokens, sequences=tokens))


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("Qwen/Qwen3-32B", 1),
        ("Qwen/Qwen3-32B", 2048),
        ("Qwen/Qwen3-30B-A3B", 64),
        ("Qwen/Qwen3-30B-A3B", 2048),
    ],
)
def test_tensor_parallel_speedup_is_sublinear(model: str, tokens: int) -> None:
    gpu = find_gpu("h200-sxm")
    shape = load_model_shape(model)
    one = seconds(gpu, shape, Parallelism(1), tokens)
    four = seconds(gpu, shape, Parallelism(4), tokens)
    assert one / 4 < four < one


def test_tensor_parallel_slow_link_limits_speedup() -> None:
    shape = load_model_shape("Qwen/Qwen3-32B")
    link = find_gpu("rtxpro6000").link_bandwidth
    assert link < find_gpu("h100-sxm").link_bandwidth / 10
    alone = seconds(find_gpu("rtxpro6000"), shape, Parallelism(1), 2048)
    assert seconds(find_gpu("rtxpro6000"), shape, Parallelism(2), 2048) > 0.6 * alone


def test_moe_step_time_grows_until_all_experts_are_read() -> None:
    gpu = find_gpu("h100-sxm")
    shape = load_model_shape("Qwen/Qwen3-30B-A3B")
    steps = [seconds(gpu, shape, Parallelism(1), tokens) for tokens in (1, 2, 16, 64, 128)]
    first = steps[1] - steps[0]
    later = (steps[4] - steps[3]) / 64
    assert first > 10 * later


def test_predicted_profile_round_trips_through_file() -> None:
    profile = predict_profile(
        find_gpu("b200"),
        load_model_shape("Qwen/Qwen3-30B-A3B"),
        Parallelism(1, 2, expert=True),
        name="moe",
    )
    assert loads(dumps(profile)) == profile
    assert profile.hardware.lock_step
    assert profile.calibration is not None
    assert profile.calibration.source.startswith("predicted from datasheets, not measured")


RUNS = [
    ("rtx4090-llama-3.1-8b", "rtx4090", "meta-llama/Llama-3.1-8B", Parallelism(), 256, 0.08),
    ("rtxpro6000-llama-3.1-8b", "rtxpro6000", "meta-llama/Llama-3.1-8B", Parallelism(), 128, 0.08),
    (
        "rtxpro6000x2-qwen3-30b-a3b-dp2-ep2",
        "rtxpro6000",
        "Qwen/Qwen3-30B-A3B",
        Parallelism(1, 2, expert=True),
        128,
        0.15,
    ),
]


@pytest.mark.parametrize(("run", "gpu", "model", "parallelism", "max_num_seqs", "most"), RUNS)
def test_predicted_profile_error_within_bounds(
    run: str, gpu: str, model: str, parallelism: Parallelism, max_num_seqs: int, most: float
) -> None:
    workload, measured = log(run)
    settings = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 2048}
    profile = predict_profile(
        find_gpu(gpu), load_model_shape(model), parallelism, name=run, settings=settings
    )
    routing = "least-loaded" if parallelism.data > 1 else "round-robin"
    simulated = Fleet(profile=profile, routing=routing).serve(workload).timings
    for metric in ("ttft", "latency", "tpot"):
        ratio = _mean(simulated, metric) / _mean(measured, metric)
        assert abs(ratio - 1) < most, f"{metric} is off by {ratio - 1:+.1%}"


def _mean(timings: list[Timing], metric: str) -> float:
    return float(
        np.mean([value for timing in timings if (value := getattr(timing, metric)) is not None])
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hidden_size": 0}, "'hidden_size' must be at least 1"),
        ({"num_hidden_layers": -32}, "'num_hidden_layers' must be at least 0"),
        ({"num_hidden_layers": True}, "'num_hidden_layers' is missing or not a number"),
        ({"hidden_size": "4096"}, "'hidden_size' is missing or not a number"),
        ({"vocab_size": None}, "'vocab_size' is missing or not a number"),
        ({"intermediate_size": None}, "'intermediate_size' is missing"),
        ({"intermediate_size": 1e30}, "'intermediate_size' must be"),
        ({"num_key_value_heads": 5}, "must be a multiple of 'num_key_value_heads' (5)"),
        ({"hidden_size": 16}, "'hidden_size' (16) is less than 'num_attention_heads' (32)"),
        ({"num_experts": 8}, "'num_experts_per_tok' must be from 1 to the number of experts, 8"),
        ({"num_experts": 8, "num_experts_per_tok": 16}, "'num_experts_per_tok' must be"),
        ({"kv_lora_rank": "512"}, "'kv_lora_rank' is missing or not a number"),
        ({"layer_types": 3}, "'layer_types' must be a list"),
        ({"layer_types": ["full_attention", "mamba"] * 16}, "'layer_types' has 'mamba'"),
        ({"layer_types": ["full_attention"] * 3}, "3 entries for 'num_hidden_layers' 32"),
        ({"max_position_embeddings": "long"}, "'max_position_embeddings' is"),
        ({"quantization_config": "awq"}, "'quantization_config' must be an object"),
        ({"quantization_config": {"quant_method": "gptq", "bits": "four"}}, "'bits' is"),
        (
            {"quantization_config": {"quant_method": "novel"}},
            "'novel' in 'quantization_config'); set it with --dtype",
        ),
        ({"text_config": [1]}, "'text_config' must be an object"),
    ],
)
def test_model_shape_invalid_config_field_named_in_error(
    fields: dict[str, Any], named: str
) -> None:
    config = {**load_models()["meta-llama/Llama-3.1-8B"], **fields}
    with pytest.raises(ProfileError, match=re.escape(named)):
        read_model_shape(config, "odd")


def test_model_shape_unknown_format_uses_dtype_argument() -> None:
    config = {
        **load_models()["meta-llama/Llama-3.1-8B"],
        "quantization_config": {"quant_method": "novel"},
    }
    assert read_model_shape(config, "novel", "int4").dtype == "int4"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "h100-sxm"),
        ("H100_SXM", "h100-sxm"),
        ("RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA H100 SXM", "h100-sxm"),
        ("A100", "a100-sxm"),
        ("l40s", "l40s"),
    ],
)
def test_find_gpu_accepts_common_spellings(spelling: str, name: str) -> None:
    assert find_gpu(spelling) == load_gpus()[name]


def test_gpu_file_without_16_bit_operations_names_field(tmp_path: Path) -> None:
    file = tmp_path / "gpu.yaml"
    file.write_text(
        "{name: x, memory: 1e10, memory_bandwidth: 1e12, flops: {fp8: 1e14}, "
        "link_bandwidth: 1e10, link_latency: 1e-5}"
    )
    with pytest.raises(ProfileError, match="flops: bf16"):
        find_gpu(str(file))


def test_unknown_gpu_or_model_error_suggests_name(tmp_path: Path) -> None:
    with pytest.raises(
        ProfileError, match=r"no GPU 'h100-sxm5'; known are .*; did you mean h100-sxm\?"
    ):
        find_gpu("h100-sxm5")
    with pytest.raises(ProfileError, match=r"did you mean meta-llama/Llama-3\.1-8B\?"):
        load_model_shape("meta-llama/Llama-3.1-8B-Instruct")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ProfileError, match=r"config\.json: Expected `object`"):
        load_model_shape(str(tmp_path))
