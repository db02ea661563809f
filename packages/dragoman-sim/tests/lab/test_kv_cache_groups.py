"""The KV cache groups of models, and the memory that they need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from dragoman_sim.engine.profile import ProfileError
from dragoman_sim.engine.scheduler_config import KvCacheGroup
from dragoman_sim.lab.gpus import find_gpu
from dragoman_sim.lab.kv_cache_groups import form_groups
from dragoman_sim.lab.model_shape import CachedLayers, load_model_shape, read_model_shape
from dragoman_sim.lab.roofline import Parallelism, predict_profile

from .test_roofline import LLAMA_4_SCOUT, QWEN3_NEXT

FULL = "full_attention"
WINDOW = "sliding_window"


@pytest.mark.parametrize(
    ("config", "groups", "group_layers"),
    [
        (
            "google/gemma-3-27b-it",
            (KvCacheGroup(WINDOW, 1024, 6), KvCacheGroup(FULL)),
            10,
        ),
        ("openai/gpt-oss-120b", (KvCacheGroup(WINDOW, 128), KvCacheGroup(FULL)), 18),
        (LLAMA_4_SCOUT, (KvCacheGroup("chunked_local", 8192, 3), KvCacheGroup(FULL)), 12),
        (QWEN3_NEXT, (KvCacheGroup("state", 0, 3), KvCacheGroup(FULL)), 12),
        ("Qwen/Qwen3-8B", (), 36),
    ],
)
def test_groups_of_models(
    config: str | dict[str, Any], groups: tuple[KvCacheGroup, ...], group_layers: int
) -> None:
    shape = load_model_shape(config) if isinstance(config, str) else read_model_shape(config, "m")
    if not groups:
        assert shape.cached_layers == ()
        return
    assert form_groups(shape.cached_layers) == (groups, group_layers)


def test_windowed_model_has_more_blocks_in_hybrid_cache() -> None:
    shape = load_model_shape("openai/gpt-oss-120b")
    gpu = find_gpu("h100-sxm")
    hybrid = predict_profile(gpu, shape, name="hybrid").engine
    joined = predict_profile(gpu, shape, name="joined", hybrid_kv_cache=False).engine
    # Half of the layers share a block, and requests of 4000 tokens need few of the
    # windows' blocks.
    assert hybrid.num_gpu_blocks == pytest.approx(2 * joined.num_gpu_blocks, rel=0.001)
    assert joined.kv_cache_groups == ()
    assert hybrid.kv_tokens > 1.5 * joined.kv_tokens


def test_joined_profile_equals_prediction_without_groups() -> None:
    shape = load_model_shape("openai/gpt-oss-20b")
    gpu = find_gpu("h100-sxm")
    joined = predict_profile(gpu, shape, name="p").join_kv_cache_groups().engine
    expected = predict_profile(gpu, shape, name="p", hybrid_kv_cache=False).engine
    assert joined.kv_cache_groups == expected.kv_cache_groups == ()
    assert joined.num_gpu_blocks == pytest.approx(expected.num_gpu_blocks, abs=2)


def test_block_of_attention_holds_a_state() -> None:
    shape = read_model_shape(QWEN3_NEXT, "Qwen3-Next")
    engine = predict_profile(find_gpu("h200"), shape, Parallelism(2), name="p").engine
    # Of the state of 32 heads of 128 x 128 and the convolution's 3 x 8192 numbers half
    # is on a device, and of keys and values one head of 256: 1024 bytes a token.
    assert engine.block_size == 544
    with pytest.raises(ProfileError, match="need the hybrid KV cache manager"):
        predict_profile(find_gpu("h200"), shape, Parallelism(2), name="p", hybrid_kv_cache=False)


def test_state_without_sizes_is_rejected_by_field() -> None:
    config = {key: value for key, value in QWEN3_NEXT.items() if not key.startswith("linear_")}
    with pytest.raises(ProfileError, match="linear_num_value_heads"):
        predict_profile(find_gpu("h200"), read_model_shape(config, "m"), name="p")


@pytest.mark.parametrize(
    ("dtype", "ratio"), [("fp8", 0.5), ("fp8_e5m2", 0.5), ("bfloat16", 1.0), ("auto", 1.0)]
)
def test_kv_cache_dtype_scales_blocks_and_reads(dtype: str, ratio: float) -> None:
    shape = load_model_shape("Qwen/Qwen3-32B")
    gpu = find_gpu("h100-sxm")
    usual = predict_profile(gpu, shape, name="p")
    changed = msgspec.structs.replace(shape, kv_cache_dtype=dtype)
    predicted = predict_profile(gpu, changed, name="p")
    for profile in (predicted, usual.convert_kv_cache(dtype)):
        blocks = usual.engine.num_gpu_blocks
        assert profile.engine.num_gpu_blocks == pytest.approx(blocks / ratio, abs=2)
        context = usual.latency.per_context_token
        assert profile.latency.per_context_token == pytest.approx(ratio * context, rel=0.001)
        assert profile.model.kv_cache_dtype == dtype
    assert predicted.convert_kv_cache("auto").engine.num_gpu_blocks == pytest.approx(blocks, abs=2)


def test_unknown_kv_cache_dtype_is_rejected_by_name() -> None:
    profile = predict_profile(find_gpu("l40s"), load_model_shape("Qwen/Qwen3-8B"), name="p")
    with pytest.raises(ValueError, match="--kv-cache-dtype int3 is not simulated"):
        profile.convert_kv_cache("int3")
    with pytest.raises(ProfileError, match="no multi-head latent attention"):
        msgspec.structs.replace(load_model_shape("Qwen/Qwen3-8B"), kv_cache_dtype="fp8_ds_mla")


# In a process of its own: vLLM chooses its platform when it is imported.
VLLM_GROUPS = """
import json, sys, torch
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.core.kv_cache_planning import _get_kv_cache_groups_uniform_page_size

found = []
for layers in json.load(sys.stdin):
    specs = {}
    for number, (kind, window) in enumerate(layers):
        sizes = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
        specs[f"layer {number}"] = {
            "full_attention": lambda: interface.FullAttentionSpec(**sizes),
            "sliding_window": lambda: interface.SlidingWindowSpec(**sizes, sliding_window=window),
            "chunked_local": lambda: interface.ChunkedLocalAttentionSpec(
                **sizes, attention_chunk_size=window
            ),
            "state": lambda: interface.MambaSpec(
                block_size=16, shapes=((256,),), dtypes=(torch.float32,)
            ),
        }[kind]()
    groups = _get_kv_cache_groups_uniform_page_size(specs)
    found.append([[type(g.kv_cache_spec).__name__, len(g.layer_names)] for g in groups])
print(json.dumps(found))
"""
SPECS = {
    "full_attention": "FullAttentionSpec",
    "sliding_window": "SlidingWindowSpec",
    "chunked_local": "ChunkedLocalAttentionSpec",
    "state": "MambaSpec",
}


@pytest.mark.vllm
def test_groups_equal_those_of_vllm() -> None:
    models = [
        load_model_shape("google/gemma-3-27b-it").cached_layers,
        load_model_shape("openai/gpt-oss-120b").cached_layers,
        read_model_shape(LLAMA_4_SCOUT, "m").cached_layers,
        read_model_shape(QWEN3_NEXT, "m").cached_layers,
        (CachedLayers(WINDOW, 12, 64), CachedLayers(FULL, 13)),
        (CachedLayers(FULL, 20), CachedLayers(WINDOW, 30, 64)),
        (CachedLayers("state", 7), CachedLayers(FULL, 3), CachedLayers(WINDOW, 5, 64)),
    ]
    layers = [
        [(each.kind, each.window) for each in model for _ in range(each.layers)] for model in models
    ]
    output = subprocess.run(
        [sys.executable, "-c", VLLM_GROUPS],
        input=json.dumps(layers),
        env={**os.environ, "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for model, found in zip(models, json.loads(output.splitlines()[-1]), strict=True):
        groups, group_layers = form_groups(model)
        tables = [SPECS[group.kind] for group in groups for _ in range(group.tables)]
        assert [name for name, _ in found] == tables
        assert max(size for _, size in found) <= group_layers
