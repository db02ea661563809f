"""The sizes of a decoder that determine the time of a step, read from a Hugging Face
config.json.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import msgspec
from msgspec import Struct

from dragoman.core.strict_yaml import load_yaml

from ..engine.kv_cache_dtype import check_kv_cache_dtype
from ..engine.profile import ProfileError
from ..engine.scheduler_config import KvCacheKind

Dtype = Literal["bf16", "fp8", "int8", "int4", "fp4"]


_DTYPE_BY_METHOD: Mapping[str, Dtype] = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "fp4"}
"""Number formats of the quantization methods of config.json that have only one."""


class CachedLayers(Struct, frozen=True):
    """Layers that keep the same of a sequence.

    window: tokens of a sliding window or of a chunk.
    """

    kind: KvCacheKind
    layers: int
    window: int = 0


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
        have a sliding window, or a state of fixed size.
    full_of_cached: the same share of the layers that have keys and values.
    cached_layers: the layers by what they keep, in the order of their first ones; empty
        if all keep everything.
    state_values: numbers of the state of one layer with linear attention.
    has_sinks: attention has sinks, learned logits without a key (gpt-oss).
    experts, experts_per_token: routed experts per layer, and those that a token uses.
    expert_params: parameters of one expert in one layer.
    moe_layers: number of layers with experts.
    dtype, expert_dtype: number formats of the weights of linear layers, and of experts.
    kv_cache_dtype: number format of keys and values, see `KV_CACHE_BYTES`.
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
    full_of_cached: float = 1.0
    cached_layers: tuple[CachedLayers, ...] = ()
    state_values: float = 0.0
    has_sinks: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_params: float = 0.0
    moe_layers: int = 0
    dtype: Dtype = "bf16"
    expert_dtype: Dtype = "bf16"
    kv_cache_dtype: str = "auto"
    max_context: int | None = None

    def __post_init__(self) -> None:
        check_kv_cache_dtype(self.kv_cache_dtype)
        if self.kv_cache_dtype == "fp8_ds_mla" and not self.kv_is_shared:
            raise ProfileError(
                f"{self.name} has no multi-head latent attention, which --kv-cache-dtype "
                f"fp8_ds_mla is for; use fp8"
            )

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


def load_models() -> dict[str, Mapping[str, Any]]:
    """Load the configs of well-known models, by their names on the Hugging Face Hub."""
    text = (files("dragoman_sim.lab") / "models.yaml").read_bytes()
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
    # number. Llama 4 has one of the width of the others, which its config does not say,
    # and a field for the width of its dense layers.
    is_llama4 = sizes.get("interleave_moe_layer_step") is not None
    num_shared = 1 if is_llama4 else sizes.get("n_shared_experts") or 0
    shared_width = sizes.get("shared_expert_intermediate_size") or expert_width * num_shared
    dense_width = sizes.get("intermediate_size_mlp") or intermediate
    kinds = _count_layers(sizes, layers)
    dense_params = (
        (layers - kinds.linear) * attention.params
        + kinds.linear * _count_linear_params(sizes)
        + (layers - moe_layers) * 3 * hidden * dense_width
        + moe_layers * (3 * hidden * shared_width + hidden * experts)
    )
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        dense_params=float(dense_params),
        head_params=float(vocab * hidden),
        embedding_params=0.0 if sizes.fields.get("tie_word_embeddings") else float(vocab * hidden),
        # Linear attention keeps a state of fixed size for each sequence.
        kv_values=float(attention.kv_values) * (layers - kinds.linear) / layers,
        kv_is_shared=attention.kv_is_shared,
        kv_heads=attention.kv_heads,
        pair_flops=attention.pair_flops,
        full_attention=kinds.full / layers,
        full_of_cached=kinds.full / max(1, layers - kinds.linear),
        cached_layers=kinds.cached,
        state_values=float(_count_state_values(sizes)) if kinds.linear else 0.0,
        # Configs of gpt-oss alone have MXFP4 experts and a window.
        has_sinks=dtype == "fp4" and bool(experts) and kinds.windowed > 0,
        experts=experts,
        experts_per_token=used,
        expert_params=float(3 * hidden * expert_width) if experts else 0.0,
        moe_layers=moe_layers,
        # MXFP4 checkpoints quantize the experts alone.
        dtype="bf16" if dtype == "fp4" and experts else dtype,
        expert_dtype=dtype,
        max_context=sizes.get("max_position_embeddings"),
    )


class _LayerKinds(NamedTuple):
    """Numbers of layers by their attention: to the whole context, to a window, and
    linear. A long window counts as the whole context, but not in `cached`.
    """

    full: int
    windowed: int
    linear: int
    cached: tuple[CachedLayers, ...]


_LONG_WINDOW = 4096
"""Tokens of a window from which it counts as the whole context: most prompts fit."""


def _count_layers(sizes: _Sizes, layers: int) -> _LayerKinds:
    window = sizes.get("sliding_window", "attention_chunk_size") or 0
    types = _list_layer_types(sizes, layers)
    counts = Counter(types)
    linear = counts["linear_attention"]
    windowed = counts["sliding_attention"] + counts["chunked_attention"]
    if windowed and not window:
        raise _ConfigError("'layer_types' has layers with a window, and no 'sliding_window'")
    cached = list[CachedLayers]()
    for name, count in counts.items():
        kind = _LAYER_TYPES[name]
        cached.append(CachedLayers(kind, count, window if kind in _WINDOWED else 0))
    if window >= _LONG_WINDOW:
        windowed = 0
    return _LayerKinds(
        layers - windowed - linear,
        windowed,
        linear,
        # One group of layers that keep everything is no group.
        () if counts["full_attention"] == layers else tuple(cached),
    )


def _list_layer_types(sizes: _Sizes, layers: int) -> list[str]:
    """List the attention of each layer, by the names of `layer_types`."""
    types: Any = sizes.fields.get("layer_types")
    if types:
        if not isinstance(types, list):
            raise _ConfigError("'layer_types' must be a list")
        kinds = cast("list[Any]", types)
        for kind in kinds:
            if kind not in _LAYER_TYPES:
                raise _ConfigError(
                    f"'layer_types' has {kind!r}; the prediction knows {', '.join(_LAYER_TYPES)}"
                )
        if len(kinds) != layers:
            raise _ConfigError(
                f"'layer_types' has {len(kinds)} entries for 'num_hidden_layers' {layers}"
            )
        return kinds
    other = ""
    interval = None
    if interval := sizes.get("full_attention_interval"):
        other = "linear_attention"
    elif sizes.get("sliding_window") and (interval := sizes.get("sliding_window_pattern")):
        other = "sliding_attention"
    elif sizes.get("attention_chunk_size"):
        # Llama 4: every fourth layer has no positions and attends to everything.
        interval = sizes.get("no_rope_layer_interval") or 4
        other = "chunked_attention"
    if not interval:
        return ["full_attention"] * layers
    return ["full_attention" if (n + 1) % interval == 0 else other for n in range(layers)]


_LAYER_TYPES: Mapping[str, KvCacheKind] = {
    "full_attention": "full_attention",
    "sliding_attention": "sliding_window",
    "chunked_attention": "chunked_local",
    "linear_attention": "state",
}
_WINDOWED = ("sliding_window", "chunked_local")


def _count_linear_params(sizes: _Sizes) -> int:
    """Count the parameters of one layer with linear attention (Gated DeltaNet of
    Qwen3-Next, arXiv:2412.06464); 0 if the config has none.
    """
    if not sizes.get("linear_num_value_heads"):
        return 0
    keys = sizes["linear_num_key_heads"] * sizes["linear_key_head_dim"]
    values = sizes["linear_num_value_heads"] * sizes["linear_value_head_dim"]
    # Queries and keys, values and gates, the output, and two numbers for each head.
    projected = 2 * keys + 2 * values + 2 * sizes["linear_num_value_heads"]
    return sizes["hidden_size"] * (projected + values)


def _count_state_values(sizes: _Sizes) -> int:
    """Count the numbers of the state of one layer with linear attention; 0 if the
    config does not have their sizes.

    As `gated_delta_net_state_shape` of vLLM's mamba_utils.py.
    """
    if not sizes.get("linear_num_value_heads"):
        return 0
    keys = sizes["linear_num_key_heads"] * sizes["linear_key_head_dim"]
    values = sizes["linear_num_value_heads"] * sizes["linear_value_head_dim"]
    convolved = (2 * keys + values) * ((sizes.get("linear_conv_kernel_dim") or 4) - 1)
    return convolved + values * sizes["linear_key_head_dim"]


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


DTYPES: tuple[str, ...] = get_args(Dtype)
