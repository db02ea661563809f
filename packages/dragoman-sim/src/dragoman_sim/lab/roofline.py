"""Prediction of a profile from datasheets and a model's config.json, by a roofline
model of a step.

A step reads the weights that it uses and the KV cache of its context, and multiplies
its tokens with the active parameters. The times of both are added, not overlapped: the
measured step times of two GPUs (`profiles/`) fit a sum, since the kernels of a layer
alternate between both. Tensor parallelism adds two all-reduces per layer, expert
parallelism an all-to-all before and after each layer's experts.

References: S. Williams et al., "Roofline" (CACM 52-4, 2009); for decoding and
collectives R. Pope et al., "Efficiently Scaling Transformer Inference" (MLSys 2023,
arXiv:2211.05102).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct

from ..engine.latency import LatencyModel, TokenCost
from ..engine.profile import Calibration, Hardware, ModelProfile, ProfileError, SimulatorProfile
from ..engine.scheduler_config import SimulatedSchedulerConfig
from .gpus import Gpu
from .model_shape import Dtype, ModelShape

BYTES_PER_WEIGHT: Mapping[Dtype, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5625,
    "fp4": 0.5625,
}
"""Four-bit formats store one 8-bit or 16-bit scale per 16 to 128 weights."""

# Shares of a datasheet's figures that a step of vLLM reaches, from the two measured
# profiles with Llama-3.1-8B: their bases are 19.97 and 12.32 ms for the 15.0 GB of
# weights that a step reads. Shares of operations are in `gpus.yaml`.
BANDWIDTH_EFFICIENCY = 0.775
"""Share of the memory bandwidth."""
HOST_SECONDS = 0.4e-3
"""Seconds per step for launching the captured graph, sampling, and the part of
scheduling that is not hidden.
"""
SEQUENCE_SECONDS = 20e-6
"""Seconds per sequence and step for sampling, and the part of scheduling and output
processing that is not hidden.
"""
COLLECTIVE_EFFICIENCY = 0.8
"""Share of the link bandwidth."""
GROUPED_EFFICIENCY = 0.5
"""Efficiency of the experts' grouped matrix products, relative to dense ones: their
tiles are only partly filled.
"""
_TILE = 64
"""Tokens that one tile of a matrix product holds."""

MEMORY_UTILIZATION = 0.9
"""Default of vLLM's --gpu-memory-utilization."""
ACTIVATION_BYTES = 1.7e9
"""Bytes of activations and captured graphs, which vLLM profiles at startup. The
measured RTX 4090 server had 2588 blocks left.
"""


# Token counts at which a cost curve may bend.
_KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_LARGE_MEMORY = 70 * 2**30
"""Bytes of memory from which vLLM has larger defaults of max_num_seqs and
max_num_batched_tokens (vllm/engine/arg_utils.py).
"""


class Parallelism(Struct, frozen=True):
    """The devices that share a model.

    tensor: tensor-parallel devices, which share every layer.
    data: data-parallel ranks, each with its own attention and requests.
    expert: the ranks share the experts, instead of each holding all of them.
    """

    tensor: int = 1
    data: int = 1
    expert: bool = False

    @property
    def devices(self) -> int:
        return self.tensor * self.data


def predict_profile(
    gpu: Gpu,
    shape: ModelShape,
    parallelism: Parallelism = Parallelism(),  # noqa: B008 - immutable
    *,
    name: str,
    settings: Mapping[str, Any] | None = None,
    memory_utilization: float = MEMORY_UTILIZATION,
) -> SimulatorProfile:
    """Predict a profile from datasheets.

    settings: vLLM's engine settings; its defaults for this device apply otherwise.
    memory_utilization: share of a device's memory that vLLM uses.

    Raises:
        ProfileError: the model does not fit into the memory, or cannot be divided among
            the devices this way.
    """
    _check_parallelism(shape, parallelism)
    weight_bytes = compute_weight_bytes(shape, parallelism)
    kv_bytes = compute_kv_bytes(shape, parallelism)
    free = gpu.memory * memory_utilization - weight_bytes - ACTIVATION_BYTES
    is_large = gpu.memory >= _LARGE_MEMORY
    defaults: dict[str, Any] = {
        "max_num_seqs": 1024 if is_large else 256,
        # vLLM excludes the A100, whose throughput a larger budget lowers
        # (vllm-project/vllm#17885).
        "max_num_batched_tokens": 8192 if is_large and "A100" not in gpu.name else 2048,
        "max_model_len": shape.max_context,
        **(settings or {}),
    }
    block_size = int(defaults.get("block_size", 16))
    blocks = int(free / (kv_bytes * block_size))
    if blocks < 2 and "num_gpu_blocks" not in defaults:
        raise ProfileError(
            f"{shape.name} does not fit on {parallelism.tensor} x {gpu.name}: "
            f"{weight_bytes / 1e9:.1f} GB of weights "
            f"for each device of {gpu.memory / 1e9:.1f} GB; use more tensor-parallel devices or "
            f"fewer bits per weight"
        )
    defaults.setdefault("num_gpu_blocks", blocks)
    if defaults["max_model_len"] is not None:
        # vLLM does not start with a context length that the cache cannot hold; the
        # prediction reduces it instead.
        defaults["max_model_len"] = min(
            int(defaults["max_model_len"]), (int(defaults["num_gpu_blocks"]) - 1) * block_size
        )
    return SimulatorProfile(
        name=name,
        hardware=Hardware(
            f"{parallelism.devices}x {gpu.name}",
            memory_bandwidth=gpu.memory_bandwidth,
            tensor_parallel=parallelism.tensor,
            data_parallel=parallelism.data,
            lock_step=parallelism.expert and parallelism.data > 1,
            link_latency=gpu.link_latency,
            watts=gpu.watts,
        ),
        model=ModelProfile(
            f"{shape.name} {shape.dtype}",
            weight_bytes=_round(weight_bytes * parallelism.tensor),
            kv_bytes_per_token=int(shape.kv_values * 2),
            layers=shape.layers,
        ),
        engine=msgspec.convert(defaults, SimulatedSchedulerConfig),
        latency=predict_latency(gpu, shape, parallelism),
        calibration=Calibration(
            source=f"predicted from datasheets, not measured: {gpu.source}", fitted=0, held_out=0
        ),
    )


def _check_parallelism(shape: ModelShape, parallelism: Parallelism) -> None:
    if parallelism.tensor > 1 and shape.hidden % parallelism.tensor:
        raise ProfileError(
            f"the hidden size {shape.hidden} cannot be divided among {parallelism.tensor} devices"
        )
    if parallelism.expert and not shape.experts:
        raise ProfileError(f"{shape.name} has no experts: expert parallelism does not apply")
    if parallelism.expert and shape.experts % parallelism.devices:
        raise ProfileError(
            f"{shape.experts} experts cannot be divided among {parallelism.devices} devices"
        )


def compute_weight_bytes(shape: ModelShape, parallelism: Parallelism) -> float:
    """Compute the bytes of weights on one device. Embeddings and the output projection
    are not quantized.
    """
    size = BYTES_PER_WEIGHT[shape.dtype]
    expert_share = parallelism.devices if parallelism.expert else parallelism.tensor
    dense = shape.dense_params * size + 2 * (shape.head_params + shape.embedding_params)
    return (
        dense / parallelism.tensor
        + shape.all_expert_params * BYTES_PER_WEIGHT[shape.expert_dtype] / expert_share
    )


def compute_kv_bytes(shape: ModelShape, parallelism: Parallelism) -> float:
    """Compute the bytes of KV cache per token on one device. With more devices than KV
    heads some hold copies.
    """
    parts = 1 if shape.kv_is_shared else min(parallelism.tensor, shape.kv_heads)
    return 2 * shape.kv_values / parts


def predict_latency(gpu: Gpu, shape: ModelShape, parallelism: Parallelism) -> LatencyModel:
    """Predict the coefficients of a step's duration, in seconds."""
    bandwidth = gpu.memory_bandwidth
    operations = _find_operations(gpu, shape.dtype) * gpu.compute_efficiency
    expert_operations = _find_operations(gpu, shape.expert_dtype) * gpu.compute_efficiency
    base = HOST_SECONDS + _predict_dense(gpu, shape, parallelism, operations, 0)
    if shape.experts:
        base += _predict_experts(gpu, shape, parallelism, expert_operations, 0)
    # Layers with a window read a bounded context, which the measured base already
    # contains.
    context = compute_kv_bytes(shape, parallelism) * shape.full_attention / bandwidth
    return LatencyModel(
        base=_round(base),
        per_token=_build_curve(
            lambda tokens: _predict_dense(gpu, shape, parallelism, operations, tokens)
        ),
        per_expert_token=_build_curve(
            lambda tokens: _predict_experts(gpu, shape, parallelism, expert_operations, tokens)
        )
        if shape.experts
        else (),
        per_context_token=_round(context),
        per_prefill_pair=_round(
            shape.pair_flops * shape.full_attention / parallelism.tensor / operations
        ),
        per_sequence=_round(
            SEQUENCE_SECONDS + 2 * shape.head_params / parallelism.tensor / operations
        ),
    )


def _predict_dense(
    gpu: Gpu, shape: ModelShape, parallelism: Parallelism, operations: float, tokens: int
) -> float:
    """Predict the seconds of everything but experts and attention.

    operations: operations per second.
    tokens: tokens of one data-parallel rank.
    """
    size = BYTES_PER_WEIGHT[shape.dtype]
    tensor = parallelism.tensor
    read = (shape.dense_params * size + 2 * shape.head_params) / tensor
    # Products with few tokens fill one tile at most, and wait for the weights anyway.
    compute = max(0, tokens - _TILE) * 2 * shape.dense_params / tensor / operations
    communication = 0.0
    if tensor > 1:
        # A ring all-reduce sends 2 (n - 1) / n of the data (R. Thakur et al., 2005),
        # after attention and after the MLP.
        sent = 2 * (tensor - 1) / tensor * 2 * shape.hidden * tokens
        communication = (
            2
            * shape.layers
            * (gpu.link_latency + sent / (gpu.link_bandwidth * COLLECTIVE_EFFICIENCY))
        )
    return read / (gpu.memory_bandwidth * BANDWIDTH_EFFICIENCY) + compute + communication


def _predict_experts(
    gpu: Gpu, shape: ModelShape, parallelism: Parallelism, operations: float, tokens: int
) -> float:
    """Predict the seconds of the experts.

    operations: operations per second.
    tokens: tokens of each data-parallel rank.
    """
    ranks = parallelism.data if parallelism.expert else 1
    share = parallelism.devices if parallelism.expert else parallelism.tensor
    # With uniform routing a token misses an expert with the probability 1 -
    # experts_per_token / experts.
    touched = shape.experts * (
        1 - (1 - shape.experts_per_token / shape.experts) ** (ranks * tokens)
    )
    expert_bytes = shape.moe_layers * shape.expert_params * BYTES_PER_WEIGHT[shape.expert_dtype]
    read = touched * expert_bytes / share
    flops = (
        2
        * shape.moe_layers
        * shape.experts_per_token
        * shape.expert_params
        * ranks
        * tokens
        / share
    )
    communication = 0.0
    if ranks > 1:
        # vLLM's default all-to-all gathers every rank's tokens before the experts and
        # scatters the sums after them.
        sent = (ranks - 1) * 2 * shape.hidden * tokens
        communication = (
            2
            * shape.moe_layers
            * (gpu.link_latency + sent / (gpu.link_bandwidth * COLLECTIVE_EFFICIENCY))
        )
    return (
        read / (gpu.memory_bandwidth * BANDWIDTH_EFFICIENCY)
        + flops / (operations * GROUPED_EFFICIENCY)
        + communication
    )


def _build_curve(seconds: Callable[[int], float]) -> tuple[TokenCost, ...]:
    """Build a piecewise linear curve from a function of the number of tokens. Nearly
    equal slopes are merged.
    """
    knots = (0, *_KNOTS)
    curve: list[TokenCost] = []
    for begin, end in pairwise(knots):
        slope = (seconds(end) - seconds(begin)) / (end - begin)
        if not curve or abs(slope - curve[-1].seconds) > 0.01 * curve[-1].seconds:
            curve.append(TokenCost(begin, _round(slope)))
    return tuple(curve)


def _find_operations(gpu: Gpu, dtype: Dtype) -> float:
    """Return the operations per second. Without four-bit products a device multiplies
    four-bit weights as bf16.
    """
    if dtype in gpu.flops:
        return gpu.flops[dtype]
    if dtype in ("int4", "fp4"):
        return gpu.flops["bf16"]
    raise ProfileError(f"{gpu.name} does not multiply {dtype}; it has {', '.join(gpu.flops)}")


def _round(value: float) -> float:
    """Round to four significant digits; a prediction is not more precise."""
    return float(f"{value:.4g}")
