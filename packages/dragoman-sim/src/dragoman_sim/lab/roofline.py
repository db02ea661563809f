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

import difflib
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import msgspec
from msgspec import Struct

from dragoman.core.strict_yaml import load_yaml
from ..engine.config import SimulatedSchedulerConfig
from ..engine.latency import LatencyModel, TokenCost
from ..engine.profile import Calibration, Hardware, ModelProfile, ProfileError, SimulatorProfile

Dtype = Literal["bf16", "fp8", "int8", "int4", "fp4"]
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

_DTYPE_BY_METHOD: Mapping[str, Dtype] = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "fp4"}
"""Number formats of the quantization methods of config.json that have only one."""

# Token counts at which a cost curve may bend.
_KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_LARGE_MEMORY = 70 * 2**30
"""Bytes of memory from which vLLM has larger defaults of max_num_seqs and
max_num_batched_tokens (vllm/engine/arg_utils.py).
"""


class Gpu(Struct, frozen=True, forbid_unknown_fields=True):
    """An accelerator, as in the table `gpus.yaml`, which explains the fields and units.

    flops: dense operations per second by number format; formats that the device cannot
        multiply are absent.
    """

    name: str
    memory: float
    memory_bandwidth: float
    flops: dict[str, float]
    link_bandwidth: float
    link_latency: float
    compute_efficiency: float = 0.7
    watts: float | None = None
    source: str = ""


class ModelShape(Struct, frozen=True, kw_only=True):
    """The sizes of a decoder that determine the time of a step.

    dense_params: parameters that every token uses: attention, dense MLPs, shared
        experts and routers.
    head_params: parameters of the output projection.
    embedding_params: parameters of the input embedding; 0 if it is tied to the output
        projection.
    kv_values: numbers in the KV cache per token, over all layers.
    pair_flops: operations per query-key pair, over all layers.
    kv_is_shared: every tensor-parallel rank holds all of `kv_values` (multi-head latent
        attention).
    full_attention: share of the layers that attend to the whole context; the others
        have a sliding window.
    experts, experts_per_token: routed experts per layer, and those that a token uses.
    expert_params: parameters of one expert in one layer.
    moe_layers: number of layers with experts.
    dtype, expert_dtype: number formats of the weights of linear layers, and of experts.
    max_context: maximum context length in tokens; None if unknown.
    """

    name: str
    layers: int
    hidden: int
    dense_params: float
    head_params: float
    embedding_params: float
    kv_values: float
    pair_flops: float
    kv_is_shared: bool = False
    kv_heads: int = 1
    full_attention: float = 1.0
    experts: int = 0
    experts_per_token: int = 0
    expert_params: float = 0.0
    moe_layers: int = 0
    dtype: Dtype = "bf16"
    expert_dtype: Dtype = "bf16"
    max_context: int | None = None

    @property
    def total_params(self) -> float:
        return self.dense_params + self.head_params + self.embedding_params + self.all_expert_params

    @property
    def all_expert_params(self) -> float:
        return self.moe_layers * self.experts * self.expert_params

    @property
    def active_params(self) -> float:
        """Parameters that every token uses, without the output projection, which only
        sampled tokens need.
        """
        return self.dense_params + self.moe_layers * self.experts_per_token * self.expert_params


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


def load_gpus() -> dict[str, Gpu]:
    """Load the GPU table, by short name."""
    text = (files("dragoman.simulation") / "gpus.yaml").read_bytes()
    return msgspec.convert(load_yaml(text), dict[str, Gpu], strict=False)


def find_gpu(name: str) -> Gpu:
    """Return a GPU of the table, or of a YAML file with one entry of the same format.
    Raises ProfileError.
    """
    if name.endswith((".yaml", ".yml")):
        try:
            return msgspec.convert(load_yaml(Path(name).read_bytes()), Gpu, strict=False)
        except (OSError, ValueError) as error:
            raise ProfileError(f"{name}: {error}") from None
    gpus = load_gpus()
    # `H100`, `h100_sxm` and `RTX 4090` name the same devices as `h100-sxm` and
    # `rtx4090`.
    spellings = {re.sub("[-_ ]", "", gpu): gpu for gpu in gpus}
    spellings |= {gpu.removesuffix("-sxm"): gpu for gpu in gpus}
    spelling = re.sub("[-_ ]", "", name.lower())
    if spelling not in spellings:
        close = difflib.get_close_matches(spelling, spellings, n=1)
        hint = f"; did you mean {spellings[close[0]]}?" if close else ""
        raise ProfileError(
            f"there is no GPU {name!r}; known are {', '.join(gpus)}, or a YAML file with its "
            f"figures{hint}"
        )
    return gpus[spellings[spelling]]


def load_models() -> dict[str, Mapping[str, Any]]:
    """Load the configs of well-known models, by their names on the Hugging Face Hub."""
    text = (files("dragoman.simulation") / "models.yaml").read_bytes()
    return msgspec.convert(load_yaml(text), dict[str, Mapping[str, Any]])


def load_model_shape(model: str, dtype: Dtype | None = None) -> ModelShape:
    """Load the shape of a model, given as a well-known name, a config.json or a
    directory with one.

    Raises:
        ProfileError: the model is unknown or its config.json invalid.
    """
    models = load_models()
    if model in models:
        return read_model_shape(models[model], model.rpartition("/")[2], dtype)
    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        base_name = model.rpartition("/")[2].lower()
        short = {name.rpartition("/")[2].lower(): name for name in models}
        # A fine-tune such as `-Instruct` has the sizes of its base model.
        close = [name for name in short if base_name.startswith(name)]
        close = close or difflib.get_close_matches(base_name, short, 1, 0.9)
        hint = f"; did you mean {short[close[0]]}?" if close else ""
        raise ProfileError(
            f"{model}: neither a config.json nor a model of the table ({', '.join(models)}): "
            f"{error.strerror}{hint}"
        ) from None
    except msgspec.MsgspecError as error:
        raise ProfileError(f"{path}: {error}") from None
    name = str(config.get("_name_or_path") or path.resolve().parent.name)
    return read_model_shape(config, name.rpartition("/")[2], dtype)


def read_model_shape(
    config: Mapping[str, Any], name: str, dtype: Dtype | None = None
) -> ModelShape:
    """Read the sizes from a Hugging Face config.json.

    dtype: number format of the linear layers; by default the config's.

    Raises:
        ProfileError: the config does not describe a decoder.
    """
    text_config: Any = config.get("text_config") or config
    try:
        if not isinstance(text_config, Mapping):
            raise _ConfigError("'text_config' must be an object")
        fields = cast("Mapping[str, Any]", text_config)
        return _read_sizes(_Sizes(fields), name, dtype or _detect_dtype(config, fields))
    except _ConfigError as error:
        raise ProfileError(f"{name}: config.json does not describe a decoder: {error}") from None


class _ConfigError(ValueError):
    """A field of a config.json is missing or invalid."""


class _Sizes:
    """The fields of a config.json, validated on access. Raises _ConfigError."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    def __getitem__(self, name: str) -> int:
        """Return a whole number of at least 1."""
        number = self.get(name)
        if not number:
            problem = "is missing or not a number" if number is None else "must be at least 1"
            raise _ConfigError(f"{name!r} {problem}")
        return number

    def get(self, *names: str) -> int | None:
        """Return the first of these fields that is above 0, else 0 if one is 0; None if
        all are missing or null.
        """
        number = None
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
                raise _ConfigError(f"{name!r} is missing or not a number")
            if not 0 <= value < 2**53:
                raise _ConfigError(f"{name!r} must be at least 0 and below 2**53")
            number = number or int(value)
        return number


class _Attention(NamedTuple):
    """Sizes of attention, with the meanings of `ModelShape`.

    params: parameters of one layer.
    """

    params: int
    kv_values: int
    kv_is_shared: bool
    kv_heads: int
    pair_flops: float


def _read_attention(sizes: _Sizes) -> _Attention:
    hidden = sizes["hidden_size"]
    layers = sizes["num_hidden_layers"]
    heads = sizes["num_attention_heads"]
    kv_heads = sizes.get("num_key_value_heads") or heads
    if kv_heads > heads or heads % kv_heads:
        raise _ConfigError(
            f"'num_attention_heads' ({heads}) must be a multiple of 'num_key_value_heads' "
            f"({kv_heads})"
        )
    head_dim = sizes.get("head_dim") or hidden // heads
    if not head_dim:
        raise _ConfigError(f"'hidden_size' ({hidden}) is less than 'num_attention_heads' ({heads})")
    lora_rank = sizes.get("kv_lora_rank")
    if lora_rank:
        # Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one compressed
        # vector per token and layer.
        rope = sizes["qk_rope_head_dim"]
        nope = sizes["qk_nope_head_dim"]
        value_dim = sizes["v_head_dim"]
        query_rank = sizes.get("q_lora_rank") or 0
        query = (
            hidden * query_rank + query_rank * heads * (nope + rope)
            if query_rank
            else hidden * heads * (nope + rope)
        )
        attention = (
            query
            + hidden * (lora_rank + rope)
            + lora_rank * heads * (nope + value_dim)
            + heads * value_dim * hidden
        )
        # In its absorbed form attention works on the compressed vectors.
        pair_flops = 2.0 * layers * heads * (2 * lora_rank + rope)
        return _Attention(attention, layers * (lora_rank + rope), True, 1, pair_flops)
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    return _Attention(
        attention,
        2 * layers * kv_heads * head_dim,
        False,
        kv_heads,
        4.0 * layers * heads * head_dim,
    )


def _read_sizes(sizes: _Sizes, name: str, dtype: Dtype) -> ModelShape:
    hidden = sizes["hidden_size"]
    layers = sizes["num_hidden_layers"]
    attention = _read_attention(sizes)
    vocab = sizes["vocab_size"]
    experts = sizes.get("num_experts", "num_local_experts", "n_routed_experts") or 0
    expert_width = sizes.get("moe_intermediate_size") or sizes["intermediate_size"]
    intermediate = sizes.get("intermediate_size") or 0
    moe_layers = used = 0
    if experts:
        used = sizes.get("num_experts_per_tok", "top_k_experts") or 0
        if not 1 <= used <= experts:
            raise _ConfigError(
                f"'num_experts_per_tok' must be from 1 to the number of experts, {experts}"
            )
        # DeepSeek's first layers are dense; Qwen and Llama models have experts in every
        # n-th layer.
        moe_layers = max(0, layers - (sizes.get("first_k_dense_replace") or 0)) // (
            sizes.get("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step") or 1
        )
    # Qwen's configs state the total width of the shared experts, DeepSeek's their
    # number.
    shared_width = sizes.get("shared_expert_intermediate_size") or expert_width * (
        sizes.get("n_shared_experts") or 0
    )
    dense_params = (
        layers * attention.params
        + (layers - moe_layers) * 3 * hidden * intermediate
        + moe_layers * (3 * hidden * shared_width + hidden * experts)
    )
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        dense_params=float(dense_params),
        head_params=float(vocab * hidden),
        embedding_params=0.0 if sizes.fields.get("tie_word_embeddings") else float(vocab * hidden),
        kv_values=float(attention.kv_values),
        kv_is_shared=attention.kv_is_shared,
        kv_heads=attention.kv_heads,
        pair_flops=attention.pair_flops,
        full_attention=_read_full_attention(sizes, layers),
        experts=experts,
        experts_per_token=used,
        expert_params=float(3 * hidden * expert_width) if experts else 0.0,
        moe_layers=moe_layers,
        # MXFP4 checkpoints quantize the experts alone.
        dtype="bf16" if dtype == "fp4" and experts else dtype,
        expert_dtype=dtype,
        max_context=sizes.get("max_position_embeddings"),
    )


def _read_full_attention(sizes: _Sizes, layers: int) -> float:
    """Return the share of layers without a sliding window."""
    types: Any = sizes.fields.get("layer_types")
    if types:
        if not isinstance(types, list):
            raise _ConfigError("'layer_types' must be a list")
        kinds = cast("list[Any]", types)
        return sum(kind == "full_attention" for kind in kinds) / len(kinds)
    pattern = sizes.get("sliding_window_pattern")
    if pattern and sizes.get("sliding_window"):
        return (layers // pattern) / layers
    return 1.0


def _detect_dtype(config: Mapping[str, Any], text_config: Mapping[str, Any]) -> Dtype:
    quantization: Any = (
        config.get("quantization_config") or text_config.get("quantization_config") or {}
    )
    if not isinstance(quantization, Mapping):
        raise _ConfigError("'quantization_config' must be an object")
    fields = cast("Mapping[str, Any]", quantization)
    method = str(fields.get("quant_method") or "")
    if method in _DTYPE_BY_METHOD:
        return _DTYPE_BY_METHOD[method]
    if method in ("awq", "gptq"):
        return "int4" if (_Sizes(fields).get("bits", "w_bit") or 4) == 4 else "int8"
    if method == "compressed-tensors":
        storage_format = str(fields.get("format") or "")
        return (
            "fp8" if "float" in storage_format else "int4" if "pack" in storage_format else "int8"
        )
    if fields:
        raise _ConfigError(
            f"the weights' format is unknown ('quant_method' {method!r} in "
            f"'quantization_config'); set it with --dtype"
        )
    return "bf16"


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


DTYPES: tuple[str, ...] = get_args(Dtype)
