"""BERT, RoBERTa and MPNet in numpy: token ids to a vector per token
(https://arxiv.org/abs/1810.04805).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import log

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .activations import compute_gelu, compute_relu
from .batch_invariant_matmul import ROWS, BlockSizes, Linear, round_up
from .batched_encoder import EncoderInput
from .encoder_config import MPNET_BUCKETS, EncoderConfig
from .safetensors_reader import Tensors

Floats = NDArray[np.float32]


Ints = NDArray[np.int64]
_MAX_SCORES = 1 << 17
"""Scores of several texts that are computed at once, so that they stay in the cache."""
_MAX_DISTANCE = 128
"""From which all distances are in one bucket."""


class LayerNorm:
    """Layer normalization. np.vecdot sums each row alone."""

    def __init__(
        self, tensors: Tensors, name: str, size: int, eps: float, *, has_bias: bool = True
    ) -> None:
        self._weight = tensors.take(f"{name}.weight", size)
        self._bias = tensors.take(f"{name}.bias", size) if has_bias else np.float32(0)
        self._ones = np.ones(size, np.float32)
        self._size = np.float32(size)
        self._eps = np.float32(eps)

    def __call__(self, rows: Floats) -> Floats:
        centered = rows - (np.vecdot(rows, self._ones) / self._size)[:, None]
        scale = np.sqrt(np.vecdot(centered, centered) / self._size + self._eps)
        centered /= scale[:, None]
        centered *= self._weight
        centered += self._bias
        return centered


class TextGroup(Struct, frozen=True):
    """Texts of one length, whose rows follow each other."""

    rows: slice
    length: int

    def split_rows(self, states: Floats, *axes: int) -> Floats:
        """A view of the rows of all texts: [texts, tokens, *axes]."""
        return states[self.rows].reshape(-1, self.length, *axes)


class BatchLayout:
    """The rows of a batch: the tokens of all inputs, the shortest first.

    inputs: in the order of their rows.
    spans: the rows of each input, in the order of the batch.
    groups: the inputs of each length, which attend in one call.
    """

    def __init__(self, batch: Sequence[EncoderInput]) -> None:
        order = sorted(range(len(batch)), key=lambda index: len(batch[index].ids))
        self.inputs = [batch[index] for index in order]
        self.spans = [slice(0)] * len(batch)
        self.groups: list[TextGroup] = []
        self.total = 0
        for length, indices in groupby(order, key=lambda index: len(batch[index].ids)):
            start = self.total
            for index in indices:
                self.spans[index] = slice(self.total, self.total + length)
                self.total += length
            self.groups.append(TextGroup(slice(start, self.total), length))
        ids = (id for item in self.inputs for id in item.ids)
        self.ids = np.fromiter(ids, np.int64, self.total)


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
        is_mpnet = config.family == "mpnet"
        self._types = (
            None
            if is_mpnet
            else tensors.take(f"{names}token_type_embeddings.weight", config.types, config.hidden)
        )
        self._distances = (
            _DistanceBias(config, tensors, f"{prefix}encoder.relative_attention_bias.weight")
            if is_mpnet
            else None
        )
        self._norm = LayerNorm(tensors, f"{names}LayerNorm", config.hidden, config.eps)
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
        layout = BatchLayout(batch)
        total = layout.total
        positions = np.empty(total, np.int64)
        for span in layout.spans:
            positions[span] = self._number(layout.ids[span])
        segments = np.zeros(total, np.int64)
        if self.config.has_segments:
            types = (item.types or (0,) * len(item.ids) for item in layout.inputs)
            segments = np.fromiter((type for each in types for type in each), np.int64, total)
        # Padded to a multiple of ROWS.
        embedded = np.zeros((round_up(total, ROWS), self.config.hidden), np.float32)
        embedded[:total] = self._tokens[layout.ids] + self._positions[positions]
        if self._types is not None:
            embedded[:total] += self._types[segments]
        rows = self._norm(embedded)
        for layer in self._layers:
            rows = layer.attention_norm(
                rows + layer.out(self._attend(layer.qkv(rows), layout.groups))
            )
            rows = layer.norm(rows + layer.down(self._activation(layer.up(rows))))
        return [rows[span] for span in layout.spans]

    def _number(self, ids: Ints) -> Ints:
        """Return the position of each token of a text."""
        if self.config.first_position == 0:
            return np.arange(len(ids))
        # As in transformers, padding tokens are not counted and have their id's position.
        padding = self.config.first_position - 1
        is_counted = ids != padding
        return np.cumsum(is_counted) * is_counted + padding

    def _attend(self, qkv: Floats, groups: list[TextGroup]) -> Floats:
        mixed = np.zeros((len(qkv), self.config.hidden), np.float32)
        for group in groups:
            query, key, value = view_qkv(qkv, group, self.config.heads)
            bias = None if self._distances is None else self._distances.compute(group.length)
            attend(query, key, value, bias, view_heads(mixed, group, self.config.heads))
        return mixed


def view_qkv(qkv: Floats, group: TextGroup, heads: int) -> Floats:
    """Return a view of the queries, keys and values of a group:
    [3, texts, heads, tokens, width].
    """
    return group.split_rows(qkv, 3, heads, qkv.shape[1] // (3 * heads)).transpose(2, 0, 3, 1, 4)


def view_heads(states: Floats, group: TextGroup, heads: int) -> Floats:
    """Return a view of the states of a group: [texts, heads, tokens, width]."""
    return group.split_rows(states, heads, states.shape[1] // heads).transpose(0, 2, 1, 3)


def attend(query: Floats, key: Floats, value: Floats, bias: Floats | None, mixed: Floats) -> None:
    """Compute [texts, heads, tokens, width] into `mixed`. bias: added to the scores of
    two tokens.
    """
    count, heads, length, _ = query.shape
    ones = np.ones(length, np.float32)
    step = max(1, _MAX_SCORES // (heads * length * length))
    for start in range(0, count, step):
        texts = slice(start, start + step)
        # Softmax. np.vecdot sums each row alone.
        weights = query[texts] @ key[texts].swapaxes(-1, -2)
        if bias is not None:
            weights += bias
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= np.vecdot(weights, ones)[..., None]
        np.matmul(weights, value[texts], out=mixed[texts])


class _DistanceBias:
    """MPNet's bias of attention scores, by the distance of two tokens in buckets, which
    are the wider the larger the distance is (https://arxiv.org/abs/1910.10683, 2.1).
    """

    def __init__(self, config: EncoderConfig, tensors: Tensors, name: str) -> None:
        self._table = tensors.take(name, MPNET_BUCKETS, config.heads)

    def compute(self, length: int) -> Floats:
        """Compute [heads, tokens, tokens]."""
        places = np.arange(length)
        ahead = places[None, :] - places[:, None]
        half = MPNET_BUCKETS // 2
        exact = half // 2
        distance = np.abs(ahead)
        scaled = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
        scaled = scaled / np.float32(log(_MAX_DISTANCE / exact)) * np.float32(half - exact)
        wide = np.minimum(exact + scaled.astype(np.int64), half - 1)
        buckets = np.where(distance < exact, distance, wide) + np.where(ahead > 0, half, 0)
        return np.ascontiguousarray(self._table[buckets].transpose(2, 0, 1))


def _load_layer(
    config: EncoderConfig, tensors: Tensors, block_sizes: BlockSizes, prefix: str
) -> _Layer:
    hidden = config.hidden
    scale = np.float32((hidden // config.heads) ** -0.5)
    if config.family == "mpnet":
        names = [f"{prefix}attention.attn.{part}" for part in "qkv"]
        out = f"{prefix}attention.attn.o"
        norm = f"{prefix}attention.LayerNorm"
    else:
        names = [f"{prefix}attention.self.{part}" for part in ("query", "key", "value")]
        out = f"{prefix}attention.output.dense"
        norm = f"{prefix}attention.output.LayerNorm"
    weights = [tensors.take(f"{name}.weight", hidden, hidden) for name in names]
    biases = [tensors.take(f"{name}.bias", hidden) for name in names]
    # The scale of attention is applied to the weights once instead of to every query.
    weights[0] = weights[0] * scale
    biases[0] = biases[0] * scale
    return _Layer(
        qkv=Linear(np.concatenate(weights).T, block_sizes, np.concatenate(biases)),
        out=load_linear(tensors, block_sizes, out, hidden, hidden),
        attention_norm=LayerNorm(tensors, norm, hidden, config.eps),
        up=load_linear(
            tensors, block_sizes, f"{prefix}intermediate.dense", hidden, config.intermediate
        ),
        down=load_linear(
            tensors, block_sizes, f"{prefix}output.dense", config.intermediate, hidden
        ),
        norm=LayerNorm(tensors, f"{prefix}output.LayerNorm", config.hidden, config.eps),
    )


def load_linear(
    tensors: Tensors,
    block_sizes: BlockSizes,
    name: str,
    inner: int,
    outer: int,
    *,
    has_bias: bool = True,
) -> Linear:
    """Load the layer of this name, from `inner` inputs to `outer` outputs."""
    weight = tensors.take(f"{name}.weight", outer, inner)
    return Linear(weight.T, block_sizes, tensors.take(f"{name}.bias", outer) if has_bias else None)
