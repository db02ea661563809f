"""BERT and RoBERTa in numpy: token ids in, a vector a token out (https://arxiv.org/abs/1810.04805).

A text's vectors depend on its own tokens alone, to the last bit: the texts of a batch share the matrix products, of
which a row does not depend on the others, and attend each to itself. Knows nothing of pooling or requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..arrays.products import ROWS, Linear, Trials, pad
from ..arrays.weights import Tensors
from .config import EncoderConfig

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Piece(Struct, frozen=True):
    """One text, or two as one. second: where the second one's segment begins; None where there is one."""

    ids: tuple[int, ...]
    second: int | None = None


class Norm:
    """Layer normalisation. np.vecdot sums each row alone."""

    def __init__(self, config: EncoderConfig, tensors: Tensors, name: str) -> None:
        self._weight = tensors.take(f"{name}.weight", config.hidden)
        self._bias = tensors.take(f"{name}.bias", config.hidden)
        self._ones = np.ones(config.hidden, np.float32)
        self._size, self._eps = np.float32(config.hidden), np.float32(config.eps)

    def __call__(self, rows: Floats) -> Floats:
        centred = rows - (np.vecdot(rows, self._ones) / self._size)[:, None]
        scale = np.sqrt(np.vecdot(centred, centred) / self._size + self._eps)
        return centred / scale[:, None] * self._weight + self._bias


class _Layer(Struct, frozen=True):
    qkv: Linear
    out: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    norm: Norm


class Bert:
    """One encoder's weights. `states` may be called from one thread at a time."""

    def __init__(self, config: EncoderConfig, tensors: Tensors, trials: Trials) -> None:
        self.config = config
        prefix = config.prefix if f"{config.prefix}embeddings.word_embeddings.weight" in tensors else ""
        names = f"{prefix}embeddings."
        positions = config.positions + config.first_position
        self._tokens = tensors.take(f"{names}word_embeddings.weight", config.vocab, config.hidden)
        self._positions = tensors.take(f"{names}position_embeddings.weight", positions, config.hidden)
        self._types = tensors.take(f"{names}token_type_embeddings.weight", config.types, config.hidden)
        self._norm = Norm(config, tensors, f"{names}LayerNorm")
        self._layers = [
            _layer(config, tensors, trials, f"{prefix}encoder.layer.{index}.") for index in range(config.layers)
        ]
        self._activation = _gelu if config.activation == "gelu" else _relu
        # Buffers of old checkpoints, and what a task that is not ours trained.
        for name in ("position_ids", "token_type_ids"):
            tensors.drop(names + name)

    def states(self, batch: Sequence[Piece]) -> list[Floats]:
        """[tokens, hidden] for each piece."""
        lengths = [len(piece.ids) for piece in batch]
        ends = np.cumsum(lengths)
        spans = [slice(int(end) - length, int(end)) for end, length in zip(ends, lengths, strict=True)]
        groups = _by_length(spans)
        rows = self._norm(self._embedded(batch, lengths))
        for layer in self._layers:
            rows = layer.attention_norm(rows + layer.out(self._attend(layer.qkv(rows), groups)))
            rows = layer.norm(rows + layer.down(self._activation(layer.up(rows))))
        return [rows[span] for span in spans]

    def _embedded(self, batch: Sequence[Piece], lengths: list[int]) -> Floats:
        """[rows, hidden], padded to a multiple of ROWS."""
        total = sum(lengths)
        rows = np.zeros((pad(total, ROWS), self.config.hidden), np.float32)
        ids = np.fromiter((id for piece in batch for id in piece.ids), np.int64, total)
        positions = np.concatenate([np.arange(length) for length in lengths]) + self.config.first_position
        rows[:total] = self._tokens[ids] + self._types[self._segments(batch, total)] + self._positions[positions]
        return rows

    def _segments(self, batch: Sequence[Piece], total: int) -> Ints:
        if self.config.types < 2:
            return np.zeros(total, np.int64)
        firsts = [len(piece.ids) if piece.second is None else piece.second for piece in batch]
        parts = [np.arange(len(piece.ids)) >= first for piece, first in zip(batch, firsts, strict=True)]
        return np.concatenate(parts).astype(np.int64)

    def _attend(self, qkv: Floats, groups: list[Ints]) -> Floats:
        config = self.config
        width = config.hidden // config.heads
        mixed = np.zeros((len(qkv), config.hidden), np.float32)
        for group in groups:
            count, length = group.shape
            # Texts, heads, then the matrices of tokens.
            split = qkv[group].reshape(count, length, 3, config.heads, width).transpose(2, 0, 3, 1, 4)
            query, key, value = np.ascontiguousarray(split)
            weights = _softmax(query @ key.swapaxes(-1, -2))
            mixed[group] = (weights @ value).transpose(0, 2, 1, 3).reshape(count, length, config.hidden)
        return mixed


def _layer(config: EncoderConfig, tensors: Tensors, trials: Trials, prefix: str) -> _Layer:
    hidden = config.hidden
    scale = np.float32((hidden // config.heads) ** -0.5)
    names = [f"{prefix}attention.self.{part}" for part in ("query", "key", "value")]
    weights = [tensors.take(f"{name}.weight", hidden, hidden) for name in names]
    biases = [tensors.take(f"{name}.bias", hidden) for name in names]
    weights[0], biases[0] = weights[0] * scale, biases[0] * scale
    return _Layer(
        qkv=Linear(np.concatenate(weights).T, trials, np.concatenate(biases)),
        out=linear(tensors, trials, f"{prefix}attention.output.dense", hidden, hidden),
        attention_norm=Norm(config, tensors, f"{prefix}attention.output.LayerNorm"),
        up=linear(tensors, trials, f"{prefix}intermediate.dense", hidden, config.intermediate),
        down=linear(tensors, trials, f"{prefix}output.dense", config.intermediate, hidden),
        norm=Norm(config, tensors, f"{prefix}output.LayerNorm"),
    )


def linear(tensors: Tensors, trials: Trials, name: str, inner: int, outer: int) -> Linear:
    """The layer of this name, from `inner` numbers to `outer`."""
    weight = tensors.take(f"{name}.weight", outer, inner)
    return Linear(weight.T, trials, tensors.take(f"{name}.bias", outer))


def _by_length(spans: Sequence[slice]) -> list[Ints]:
    """Row numbers, [texts, tokens]: texts of one length attend in one call, which is one product a text and head."""
    groups: dict[int, list[int]] = {}
    for span in spans:
        groups.setdefault(span.stop - span.start, []).append(span.start)
    return [np.array(starts)[:, None] + np.arange(length) for length, starts in groups.items()]


def _softmax(scores: Floats) -> Floats:
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= np.vecdot(scores, np.ones(scores.shape[-1], np.float32))[..., None]
    return scores


def _relu(rows: Floats) -> Floats:
    return np.maximum(rows, 0)


def _gelu(rows: Floats) -> Floats:
    """rows * the normal distribution's cumulative function; its error is below 2e-7.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.17 by way of 7.1.26.
    """
    sized = np.abs(rows) * np.float32(0.5**0.5)
    t = np.float32(1) / (np.float32(1) + np.float32(0.3275911) * sized)
    series = np.full_like(t, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series *= t
        series += np.float32(coefficient)
    tail = series * t * np.exp(-sized * sized) * np.float32(0.5)
    return rows * np.where(rows > 0, np.float32(1) - tail, tail)
