"""ModernBERT in numpy: token ids to a vector per token
(https://arxiv.org/abs/2412.13663).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .activations import compute_gelu
from .batch_invariant_matmul import ROWS, BlockSizes, Linear, round_up
from .batched_encoder import EncoderInput
from .bert import BatchLayout, LayerNorm, TextGroup, attend, load_linear, view_heads, view_qkv
from .encoder_config import ModernBertConfig
from .safetensors_reader import Tensors

Floats = NDArray[np.float32]
_HIDDEN_SCORE = np.float32(-1e9)
"""Added to the score of two tokens that do not see each other."""


class _Layer(Struct, frozen=True):
    """The weights of a layer. attention_norm: None in the first one."""

    attention_norm: LayerNorm | None
    qkv: Linear
    out: Linear
    norm: LayerNorm
    up: Linear
    down: Linear


class ModernBert:
    """The weights of an encoder. `compute_states` may be called from one thread at a
    time.
    """

    def __init__(self, config: ModernBertConfig, tensors: Tensors, block_sizes: BlockSizes) -> None:
        self.config = config
        name = "embeddings.tok_embeddings.weight"
        prefix = "model." if f"model.{name}" in tensors else ""
        self._tokens = tensors.take(f"{prefix}{name}", config.vocab, config.hidden)
        self._norm = load_norm(config, tensors, f"{prefix}embeddings.norm")
        self._layers = [
            _load_layer(config, tensors, block_sizes, f"{prefix}layers.{index}.", index)
            for index in range(config.layers)
        ]
        self._final_norm = load_norm(config, tensors, f"{prefix}final_norm")

    def compute_states(self, batch: Sequence[EncoderInput]) -> list[Floats]:
        """Compute [tokens, hidden] for each input."""
        layout = BatchLayout(batch)
        embedded = np.zeros((round_up(layout.total, ROWS), self.config.hidden), np.float32)
        embedded[: layout.total] = self._tokens[layout.ids]
        rows = self._norm(embedded)
        for index, layer in enumerate(self._layers):
            normed = rows if layer.attention_norm is None else layer.attention_norm(rows)
            rows = rows + layer.out(self._attend(layer.qkv(normed), layout.groups, index))
            both = layer.up(layer.norm(rows))
            size = self.config.intermediate
            rows = rows + layer.down(compute_gelu(both[:, :size]) * both[:, size:])
        states = self._final_norm(rows)
        return [states[span] for span in layout.spans]

    def _attend(self, qkv: Floats, groups: list[TextGroup], layer: int) -> Floats:
        config = self.config
        mixed = np.zeros((len(qkv), config.hidden), np.float32)
        for group in groups:
            query, key, value = view_qkv(qkv, group, config.heads)
            length, width = query.shape[-2:]
            cosines, sines = _compute_rotation(length, width, config.thetas[layer])
            window = config.windows[layer]
            attend(
                _rotate(query, cosines, sines),
                _rotate(key, cosines, sines),
                value,
                None if window is None or length <= window else _build_mask(length, window),
                view_heads(mixed, group, config.heads),
            )
        return mixed


def _compute_rotation(length: int, width: int, theta: float) -> tuple[Floats, Floats]:
    """Compute the cosines and sines of the angles: [tokens, width / 2]."""
    powers = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    frequencies = np.float32(1) / np.power(np.float32(theta), powers)
    places = np.arange(length, dtype=np.float32)
    angles = (places[:, None] * frequencies).astype(np.float32, copy=False)
    return (
        np.cos(angles).astype(np.float32, copy=False),
        np.sin(angles).astype(np.float32, copy=False),
    )


def _rotate(states: Floats, cosines: Floats, sines: Floats) -> Floats:
    half = states.shape[-1] // 2
    first, second = states[..., :half], states[..., half:]
    rotated = np.empty_like(states)
    rotated[..., :half] = first * cosines - second * sines
    rotated[..., half:] = second * cosines + first * sines
    return rotated


def _build_mask(length: int, window: int) -> Floats:
    places = np.arange(length)
    is_far = np.abs(places[:, None] - places[None, :]) > window
    mask = np.zeros((length, length), np.float32)
    mask[is_far] = _HIDDEN_SCORE
    return mask


def load_norm(config: ModernBertConfig, tensors: Tensors, name: str) -> LayerNorm:
    return LayerNorm(tensors, name, config.hidden, config.eps, has_bias=config.has_norm_bias)


def _load_layer(
    config: ModernBertConfig, tensors: Tensors, block_sizes: BlockSizes, prefix: str, index: int
) -> _Layer:
    hidden = config.hidden
    scale = np.float32((hidden // config.heads) ** -0.5)
    weight = tensors.take(f"{prefix}attn.Wqkv.weight", 3 * hidden, hidden).copy()
    bias = (
        tensors.take(f"{prefix}attn.Wqkv.bias", 3 * hidden).copy()
        if config.has_attention_bias
        else None
    )
    # The scale of attention is applied to the weights once instead of to every query.
    weight[:hidden] *= scale
    if bias is not None:
        bias[:hidden] *= scale
    return _Layer(
        attention_norm=load_norm(config, tensors, f"{prefix}attn_norm") if index else None,
        qkv=Linear(weight.T, block_sizes, bias),
        out=load_linear(
            tensors,
            block_sizes,
            f"{prefix}attn.Wo",
            hidden,
            hidden,
            has_bias=config.has_attention_bias,
        ),
        norm=load_norm(config, tensors, f"{prefix}mlp_norm"),
        up=load_linear(
            tensors,
            block_sizes,
            f"{prefix}mlp.Wi",
            hidden,
            2 * config.intermediate,
            has_bias=config.has_mlp_bias,
        ),
        down=load_linear(
            tensors,
            block_sizes,
            f"{prefix}mlp.Wo",
            config.intermediate,
            hidden,
            has_bias=config.has_mlp_bias,
        ),
    )
