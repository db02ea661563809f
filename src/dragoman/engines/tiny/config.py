"""Reads and validates a Llama's config.json. Independent of weights and requests.

Features of `LlamaForCausalLM` that this engine lacks are rejected by name: a model that loads must compute correct
results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from ...core.errors import EngineError


class RopeConfig(Struct, frozen=True):
    """Rotary position embedding. kind: the formula by its name in transformers' `modeling_rope_utils`."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class LlamaConfig(Struct, frozen=True):
    """Dimensions of a Llama. max_positions: the longest context that it was trained for."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    eps: float
    is_tied: bool
    rope: RopeConfig

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Numbers per token and layer in the KV cache: keys, then values."""
        return 2 * self.kv_heads * self.head_dim


class _RopeFile(Struct):
    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class _File(Struct):
    """config.json as transformers writes it, 4 and 5."""

    architectures: list[str]
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: float | None = None
    rope_parameters: _RopeFile | None = None
    rope_scaling: _RopeFile | None = None


def read_config(path: Path) -> LlamaConfig:
    """Read a config.json; EngineError names what is missing or not supported."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError) as error:
        raise EngineError(f"{path} is not a valid Llama configuration: {error}") from error
    unsupported = _find_unsupported(file)
    if unsupported:
        raise EngineError(f"{path}: {unsupported} is not supported by the tiny engine")
    return LlamaConfig(
        hidden=file.hidden_size,
        intermediate=file.intermediate_size,
        layers=file.num_hidden_layers,
        heads=file.num_attention_heads,
        kv_heads=file.num_key_value_heads or file.num_attention_heads,
        # Files without them are of older Llamas, where every head has its own keys and their widths add up to
        # `hidden_size`.
        head_dim=file.head_dim or file.hidden_size // file.num_attention_heads,
        vocab=file.vocab_size,
        max_positions=file.max_position_embeddings,
        eps=file.rms_norm_eps,
        is_tied=file.tie_word_embeddings,
        rope=_read_rope(path, file),
    )


def _find_unsupported(file: _File) -> str | None:
    if file.architectures != ["LlamaForCausalLM"]:
        return f"architecture {file.architectures}"
    if file.hidden_act != "silu":
        return f"hidden_act {file.hidden_act!r}"
    if file.attention_bias or file.mlp_bias:
        return "a bias"
    if file.num_attention_heads % (file.num_key_value_heads or file.num_attention_heads):
        return "a number of heads that is not a multiple of the key-value heads"
    return None


def _read_rope(path: Path, file: _File) -> RopeConfig:
    """transformers 5 writes `rope_parameters`; 4 wrote `rope_theta`, and `rope_scaling` where there was any."""
    settings = file.rope_parameters or file.rope_scaling or _RopeFile()
    kind = settings.rope_type or settings.type or "default"
    if kind not in ("default", "linear", "llama3"):
        raise EngineError(f"{path}: rope_type {kind!r} is not supported by the tiny engine")
    return RopeConfig(
        theta=settings.rope_theta or file.rope_theta or 10000.0,
        kind=kind,
        factor=settings.factor,
        low_freq_factor=settings.low_freq_factor,
        high_freq_factor=settings.high_freq_factor,
        original_max_position_embeddings=settings.original_max_position_embeddings,
    )
