"""BERT and RoBERTa in numpy: token ids to a vector per token
(https://arxiv.org/abs/1810.04805).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .activations import compute_gelu, compute_relu
from .batch_invariant_matmul import ROWS, BlockSizes, Linear, round_up
from .batched_encoder import EncoderInput
from .encoder_config import EncoderConfig
from .safetensors_reader import Tensors

Floats = NDArray[np.float32]


Ints = NDArray[np.int64]


class LayerNorm:
    """Layer normalization. np.vecdot sums each row alone."""

    def __init__(self, config: EncoderConfig, tensors: Tensors, name: str) -> None:
        self._weight = tensors.take(f"{name}.weight", config.hidden)
        self._bias = tensors.take(f"{name}.bias", config.hidden)
        self._ones = np.ones(config.hidden, np.float32)
        self._size = np.float32(config.hidden)
        self._eps = np.float32(config.eps)

    def __call__(self, rows: Floats) -> Floats:
        centered = rows - (np.vecdot(rows, self._ones) / self._size)[:, None]
        scale = np.sqrt(np.vecdot(centered, centered) / self._size + self._eps)
        return centered / scale[:, None] * self._weight + self._bias


class _Layer(Struct, frozen=True):
    qkv: Linear
    out: Linear
    attention_norm: LayerNorm
    up: Linear
    down: Linear
    norm: LayerNorm


class Bert:
    """The weights of an encoder. `compute_states` may be called from one thread at a
    time.
    """

    def __init__(self, config: EncoderConfig, tensors: Tensors, block_sizes: BlockSizes) -> None:
        self.config = config
        prefix = (
            config.prefix if f"{config.prefix}embeddings.word_embeddings.weight" in tensors else ""
        )
        names = f"{prefix}embeddings."
        positions = config.positions + config.first_position
        self._tokens = tensors.take(f"{names}word_embeddings.weight", config.vocab, config.hidden)
        self._positions = tensors.take(
            f"{names}position_embeddings.weight", positions, config.hidden
        )
        self._types = tensors.take(
            f"{names}token_type_embeddings.weight", config.types, config.hidden
        )
        self._norm = LayerNorm(config, tensors, f"{names}LayerNorm")
        self._layers = [
            _load_layer(config, tensors, block_sizes, f"{prefix}encoder.layer.{index}.")
            for index in range(config.layers)
        ]
        self._activation = compute_gelu if config.activation == "gelu" else compute_relu
        # Old checkpoints store these index buffers as tensors.
        for name in ("position_ids", "token_type_ids"):
            tensors.drop(names + name)

    def compute_states(self, batch: Sequence[EncoderInput]) -> list[Floats]:
        """Compute [tokens, hidden] for each input."""
        lengths = [len(item.ids) for item in batch]
        ends = np.cumsum(lengths)
        spans = [
            slice(int(end) - length, int(end)) for end, length in zip(ends, lengths, strict=True)
        ]
        starts: dict[int, list[int]] = {}
        for span in spans:
            starts.setdefault(span.stop - span.start, []).append(span.start)
        # Rows as [texts, tokens]: texts of one length attend in one call.
        groups = [
            np.array(begins)[:, None] + np.arange(length) for length, begins in starts.items()
        ]
        total = sum(lengths)
        ids = np.fromiter((id for item in batch for id in item.ids), np.int64, total)
        positions = (
            np.concatenate([np.arange(length) for length in lengths]) + self.config.first_position
        )
        segments = np.zeros(total, np.int64)
        if self.config.has_segments:
            types = (item.types or (0,) * len(item.ids) for item in batch)
            segments = np.fromiter((type for each in types for type in each), np.int64, total)
        # Padded to a multiple of ROWS.
        embedded = np.zeros((round_up(total, ROWS), self.config.hidden), np.float32)
        embedded[:total] = self._tokens[ids] + self._types[segments] + self._positions[positions]
        rows = self._norm(embedded)
        for layer in self._layers:
            rows = layer.attention_norm(rows + layer.out(self._attend(layer.qkv(rows), groups)))
            rows = layer.norm(rows + layer.down(self._activation(layer.up(rows))))
        return [rows[span] for span in spans]

    def _attend(self, qkv: Floats, groups: list[Ints]) -> Floats:
        config = self.config
        width = config.hidden // config.heads
        mixed = np.zeros((len(qkv), config.hidden), np.float32)
        for group in groups:
            count, length = group.shape
            # Texts, heads, then the matrices of tokens.
            split = (
                qkv[group].reshape(count, length, 3, config.heads, width).transpose(2, 0, 3, 1, 4)
            )
            query, key, value = np.ascontiguousarray(split)
            # Softmax. np.vecdot sums each row alone.
            weights = query @ key.swapaxes(-1, -2)
            weights -= weights.max(axis=-1, keepdims=True)
            np.exp(weights, out=weights)
            weights /= np.vecdot(weights, np.ones(length, np.float32))[..., None]
            mixed[group] = (
                (weights @ value).transpose(0, 2, 1, 3).reshape(count, length, config.hidden)
            )
        return mixed


def _load_layer(
    config: EncoderConfig, tensors: Tensors, block_sizes: BlockSizes, prefix: str
) -> _Layer:
    hidden = config.hidden
    scale = np.float32((hidden // config.heads) ** -0.5)
    names = [f"{prefix}attention.self.{part}" for part in ("query", "key", "value")]
    weights = [tensors.take(f"{name}.weight", hidden, hidden) for name in names]
    biases = [tensors.take(f"{name}.bias", hidden) for name in names]
    # The scale of attention is applied to the weights once instead of to every query.
    weights[0] = weights[0] * scale
    biases[0] = biases[0] * scale
    return _Layer(
        qkv=Linear(np.concatenate(weights).T, block_sizes, np.concatenate(biases)),
        out=load_linear(tensors, block_sizes, f"{prefix}attention.output.dense", hidden, hidden),
        attention_norm=LayerNorm(config, tensors, f"{prefix}attention.output.LayerNorm"),
        up=load_linear(
            tensors, block_sizes, f"{prefix}intermediate.dense", hidden, config.intermediate
        ),
        down=load_linear(
            tensors, block_sizes, f"{prefix}output.dense", config.intermediate, hidden
        ),
        norm=LayerNorm(config, tensors, f"{prefix}output.LayerNorm"),
    )


def load_linear(
    tensors: Tensors, block_sizes: BlockSizes, name: str, inner: int, outer: int
) -> Linear:
    """Load the layer of this name, from `inner` inputs to `outer` outputs."""
    weight = tensors.take(f"{name}.weight", outer, inner)
    return Linear(weight.T, block_sizes, tensors.take(f"{name}.bias", outer))
