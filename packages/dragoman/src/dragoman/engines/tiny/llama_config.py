"""The config.json of a Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from ...core.errors import EngineError


class RopeConfig(Struct, frozen=True):
    """Rotary position embedding. kind: the formula by its name in transformers'
    `modeling_rope_utils`.
    """

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class LlamaConfig(Struct, frozen=True):
    """Dimensions of a Llama. max_positions: the longest context that it was trained
    for.
    """

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


# A config.json may be a stranger's: a size of 0 or a factor beyond float32 fails only in
# the middle of a computation.
_Size = Annotated[int, Meta(gt=0, le=1 << 40)]
_Factor = Annotated[float, Meta(gt=0, le=1e12)]


class _RopeFile(Struct):
    rope_theta: _Factor | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: _Factor = 1.0
    low_freq_factor: _Factor = 1.0
    high_freq_factor: _Factor = 4.0
    original_max_position_embeddings: _Size = 8192


class _File(Struct):
    """A config.json as transformers 4 or 5 writes it."""

    architectures: list[str]
    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: _Size
    num_attention_heads: _Size
    vocab_size: _Size
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    max_position_embeddings: _Size = 2048
    rms_norm_eps: Annotated[float, Meta(ge=0, lt=1)] = 1e-6
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: _Factor | None = None
    rope_parameters: _RopeFile | None = None
    rope_scaling: _RopeFile | None = None


def read_config(path: Path) -> LlamaConfig:
    """Read a config.json. Raises EngineError, which names the missing or unsupported
    field.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"{path} is not a valid Llama configuration: {error}") from error
    kv_heads = file.num_key_value_heads or file.num_attention_heads
    unsupported = None
    if file.architectures != ["LlamaForCausalLM"]:
        unsupported = f"architecture {file.architectures}"
    elif file.hidden_act != "silu":
        unsupported = f"hidden_act {file.hidden_act!r}"
    elif file.attention_bias or file.mlp_bias:
        unsupported = "a bias"
    elif file.num_attention_heads % kv_heads:
        unsupported = "a number of heads that is not a multiple of the key-value heads"
    if unsupported is not None:
        raise EngineError(f"{path}: {unsupported} is not supported by the tiny engine")
    # transformers 5 writes `rope_parameters`; 4 wrote `rope_theta`, and `rope_scaling`
    # if there was any.
    rope = file.rope_parameters or file.rope_scaling or _RopeFile()
    rope_type = rope.rope_type or rope.type or "default"
    if rope_type not in ("default", "linear", "llama3"):
        raise EngineError(f"{path}: rope_type {rope_type!r} is not supported by the tiny engine")
    return LlamaConfig(
        hidden=file.hidden_size,
        intermediate=file.intermediate_size,
        layers=file.num_hidden_layers,
        heads=file.num_attention_heads,
        kv_heads=kv_heads,
        # Files of older Llamas have no head_dim: there the widths of all heads add up
        # to `hidden_size`.
        head_dim=file.head_dim or file.hidden_size // file.num_attention_heads,
        vocab=file.vocab_size,
        max_positions=file.max_position_embeddings,
        eps=file.rms_norm_eps,
        is_tied=file.tie_word_embeddings,
        rope=RopeConfig(
            theta=rope.rope_theta or file.rope_theta or 10000.0,
            kind=rope_type,
            factor=rope.factor,
            low_freq_factor=rope.low_freq_factor,
            high_freq_factor=rope.high_freq_factor,
            original_max_position_embeddings=rope.original_max_position_embeddings,
        ),
    )
