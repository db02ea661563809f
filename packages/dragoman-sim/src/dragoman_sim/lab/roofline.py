"""Prediction of a profile from datasheets and a model's config.json, by a roofline
model of a step.

A step reads the weights that it uses and the KV cache of its context, and multiplies
its tokens with the active parameters. Matrix products take about the longer of reading
their weights and computing (see `_overlap`), attention is added. Each layer costs a
fixed time for its launches and small kernels, more so in a step with a prompt chunk,
which is no single CUDA graph. Tensor parallelism adds two all-reduces per layer, expert
parallelism an all-to-all before and after each layer's experts.

The constants here and in `gpus.yaml` are fitted jointly to public measurements of vLLM
and to the measured runs of the tests, by `python -m benchmarks.roofline`, which also
prints the errors on models that were left out.

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

from ..engine.kv_cache_dtype import KV_CACHE_BYTES
from ..engine.latency import LatencyModel, TokenCost
from ..engine.profile import Calibration, Hardware, ModelProfile, ProfileError, SimulatorProfile
from ..engine.scheduler_config import SimulatedSchedulerConfig
from .batch_defaults import find_batch_defaults
from .gpus import Gpu
from .kv_cache_groups import build_cache_layout
from .model_shape import Dtype, ModelShape

BYTES_PER_WEIGHT: Mapping[Dtype, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5625,
    "fp4": 0.5625,
}
"""Four-bit formats store one 8-bit or 16-bit scale per 16 to 128 weights."""


class Constants(Struct, frozen=True):
    """What the roofline needs beside datasheets; those of a device are in `Gpu`.

    host_seconds: launching the captured graph, sampling, and the part of scheduling
        that is not hidden, per step.
    moe_layer_seconds: routing of one layer with experts, in addition to a layer's own.
    mixed_layer_seconds, mixed_sequence_seconds: additional cost of a layer in a step
        with a prompt chunk, and of each of its sequences in a layer.
    sequence_seconds: sampling, and the part of output processing that is not hidden.
    frontend_seconds: from the client to the engine's queue.
    overlap: exponent of `_overlap`; 1 adds reading and computing, more overlaps them.
    link_growth: the latency of an all-reduce among n devices is that of two, times
        (n / 2) ** link_growth.
    exchange_cost: cost of an exchange of tokens between ranks that share experts,
        relative to an all-reduce of as many bytes.
    grouped_efficiency: efficiency of the experts' grouped matrix products, relative to
        dense ones: their tiles are only partly filled.
    attention_efficiency: efficiency of a prompt's attention, relative to dense products.
    sink_cost: cost of a prompt's attention with sinks by Triton's kernel, relative to
        other models' attention.
    """

    host_seconds: float = 0.696e-3
    moe_layer_seconds: float = 25.9e-6
    mixed_layer_seconds: float = 44.6e-6
    mixed_sequence_seconds: float = 0.218e-6
    sequence_seconds: float = 15.1e-6
    frontend_seconds: float = 6.26e-3
    overlap: float = 3.5
    link_growth: float = 1.19
    exchange_cost: float = 1.12
    grouped_efficiency: float = 0.583
    attention_efficiency: float = 1.38
    sink_cost: float = 2.69


FITTED = Constants()
"""The fit to public measurements."""

MEMORY_UTILIZATION = 0.9
"""Default of vLLM's --gpu-memory-utilization."""
ACTIVATION_BYTES = 1.7e9
"""Bytes of activations and captured graphs, which vLLM profiles at startup. The
measured RTX 4090 server had 2588 blocks left.
"""


# Token counts at which a cost curve may bend.
_KNOTS = (
    *(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536),
    *(2048, 3072, 4096, 6144, 8192, 16384),
)


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
    hybrid_kv_cache: bool = True,
) -> SimulatorProfile:
    """Predict a profile from datasheets.

    settings: vLLM's engine settings; its defaults for this device apply otherwise.
    memory_utilization: share of a device's memory that vLLM uses.
    hybrid_kv_cache: keep of layers with a window only what it covers, as vLLM's hybrid
        KV cache manager does.

    Raises:
        ProfileError: the model does not fit into the memory, or cannot be divided among
            the devices this way.
    """
    _check_parallelism(shape, parallelism)
    weight_bytes = compute_weight_bytes(shape, parallelism)
    kv_bytes = compute_kv_bytes(shape, parallelism)
    free = gpu.memory * memory_utilization - weight_bytes - ACTIVATION_BYTES
    defaults: dict[str, Any] = {
        **find_batch_defaults(gpu),
        "max_model_len": shape.max_context,
        **(settings or {}),
    }
    layout = build_cache_layout(
        shape,
        token_bytes=kv_bytes,
        # A state is divided among the devices by its heads, and has the model's 16 bits.
        state_bytes=2 * shape.state_values / parallelism.tensor,
        block_size=int(defaults.get("block_size", 16)),
        is_hybrid=hybrid_kv_cache,
    )
    defaults["block_size"] = layout.block_size
    defaults["kv_cache_groups"] = layout.groups
    blocks = int(free / layout.block_bytes)
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
        longest = msgspec.convert(defaults, SimulatedSchedulerConfig).kv_tokens
        defaults["max_model_len"] = min(int(defaults["max_model_len"]), longest)
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
            kv_bytes_per_token=int(shape.kv_values * KV_CACHE_BYTES[shape.kv_cache_dtype]),
            kv_cache_dtype=shape.kv_cache_dtype,
            layers=shape.layers,
        ),
        engine=msgspec.convert(defaults, SimulatedSchedulerConfig),
        latency=predict_latency(gpu, shape, parallelism),
        frontend_seconds=FITTED.frontend_seconds,
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
    return KV_CACHE_BYTES[shape.kv_cache_dtype] * shape.kv_values / parts


def predict_latency(
    gpu: Gpu, shape: ModelShape, parallelism: Parallelism, constants: Constants = FITTED
) -> LatencyModel:
    """Predict the coefficients of a step's duration, in seconds."""
    tensor = parallelism.tensor
    bandwidth = gpu.memory_bandwidth
    # Attention and the output projection are computed in 16 bits.
    operations = gpu.flops["bf16"] * gpu.compute_efficiency
    base = (
        constants.host_seconds
        + shape.layers * gpu.layer_seconds
        + shape.moe_layers * constants.moe_layer_seconds
        + _predict_dense(gpu, shape, parallelism, constants, 0)
    )
    if shape.experts:
        base += _predict_experts(gpu, shape, parallelism, constants, 0)
    pairs = shape.pair_flops * shape.full_attention
    if shape.has_sinks and not gpu.has_sink_kernel:
        # Triton's kernel computes the layers with a window like the others.
        pairs = shape.pair_flops * constants.sink_cost
    # Layers with a window read a bounded context, which the base already contains.
    context = compute_kv_bytes(shape, parallelism) * shape.full_of_cached
    return LatencyModel(
        base=_round(base),
        per_token=_build_curve(
            lambda tokens: _predict_dense(gpu, shape, parallelism, constants, tokens)
        ),
        per_expert_token=_build_curve(
            lambda tokens: _predict_experts(gpu, shape, parallelism, constants, tokens)
        )
        if shape.experts
        else (),
        per_context_token=_round(context / (bandwidth * gpu.kv_efficiency)),
        per_prefill_pair=_round(pairs / tensor / (operations * constants.attention_efficiency)),
        per_sequence=_round(
            constants.sequence_seconds + 2 * shape.head_params / tensor / operations
        ),
        mixed_base=_round(shape.layers * constants.mixed_layer_seconds),
        per_mixed_sequence=_round(shape.layers * constants.mixed_sequence_seconds),
    )


def _predict_dense(
    gpu: Gpu, shape: ModelShape, parallelism: Parallelism, constants: Constants, tokens: int
) -> float:
    """Predict the seconds of everything but experts and attention.

    tokens: tokens of one data-parallel rank.
    """
    tensor = parallelism.tensor
    weights = shape.dense_params * BYTES_PER_WEIGHT[shape.dtype] + 2 * shape.head_params
    read = weights / tensor / (gpu.memory_bandwidth * gpu.bandwidth_efficiency)
    operations = _find_operations(gpu, shape.dtype) * gpu.compute_efficiency
    compute = tokens * 2 * shape.dense_params / tensor / operations
    communication = 0.0
    if tensor > 1:
        # A ring all-reduce sends 2 (n - 1) / n of the data (R. Thakur et al., 2005),
        # after attention and after the MLP.
        sent = 2 * (tensor - 1) / tensor * 2 * shape.hidden * tokens
        latency = gpu.link_latency * (tensor / 2) ** constants.link_growth
        bandwidth = gpu.link_bandwidth * gpu.collective_efficiency
        communication = 2 * shape.layers * (latency + sent / bandwidth)
    return _overlap(read, compute, constants) + communication


def _predict_experts(
    gpu: Gpu, shape: ModelShape, parallelism: Parallelism, constants: Constants, tokens: int
) -> float:
    """Predict the seconds of the experts.

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
    read = touched * expert_bytes / share / (gpu.memory_bandwidth * gpu.bandwidth_efficiency)
    operations = _find_operations(gpu, shape.expert_dtype) * gpu.compute_efficiency
    multiplied = shape.moe_layers * shape.experts_per_token * shape.expert_params * ranks * tokens
    compute = 2 * multiplied / share / (operations * constants.grouped_efficiency)
    communication = 0.0
    if ranks > 1:
        # vLLM's default all-to-all gathers every rank's tokens before the experts and
        # scatters the sums after them.
        sent = (ranks - 1) * 2 * shape.hidden * tokens
        bandwidth = gpu.link_bandwidth * gpu.collective_efficiency
        once = constants.exchange_cost * (gpu.link_latency + sent / bandwidth)
        communication = 2 * shape.moe_layers * once
    return _overlap(read, compute, constants) + communication


def _overlap(read: float, compute: float, constants: Constants) -> float:
    """Return the seconds of matrix products that read and compute this long: about the
    longer of both, and more where they are nearly equal.

    A p-norm, (read^p + compute^p)^(1/p).
    """
    longest = max(read, compute)
    if longest == 0:
        return 0.0
    exponent = constants.overlap
    return longest * ((read / longest) ** exponent + (compute / longest) ** exponent) ** (
        1 / exponent
    )


def _build_curve(seconds: Callable[[int], float]) -> tuple[TokenCost, ...]:
    """Build a piecewise linear curve from a function of the number of tokens. Nearly
    equal slopes are merged.
    """
    knots = (0, *_KNOTS)
    curve: list[TokenCost] = []
    for begin, end in pairwise(knots):
        slope = max(0.0, (seconds(end) - seconds(begin)) / (end - begin))
        if not curve or abs(slope - curve[-1].seconds) > 0.01 * curve[-1].seconds:
            curve.append(TokenCost(begin, _round(slope)))
    return tuple(curve)


def _find_operations(gpu: Gpu, dtype: Dtype) -> float:
    """Return the operations per second. A device that does not multiply a format
    multiplies its weights as bf16, as vLLM's Marlin kernels do.
    """
    return gpu.flops.get(dtype, gpu.flops["bf16"])


def _round(value: float) -> float:
    """Round to four significant digits; a prediction is not more precise."""
    return float(f"{value:.4g}")
