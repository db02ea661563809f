"""Embeddings from the states of tokens: pooled, truncated, normalized, encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.encoder_requests import EmbeddingInfo, Embeddings, EmbedRequest, Pooling
from ..core.errors import EngineError
from .activations import ACTIVATION_FUNCTIONS
from .safetensors_reader import Tensors
from .sentence_modules import Dense, HeadStep, LayerNormalization, PoolingConfig, UnitLength

Floats = NDArray[np.float32]
_NORM_EPS = 1e-5
"""Of torch's LayerNorm."""


def check_max_model_len(max_model_len: int | None, max_positions: int) -> None:
    """Raise EngineError if the option exceeds the model's positions."""
    if max_model_len is not None and not 1 < max_model_len <= max_positions:
        raise EngineError(
            f"max_model_len must be between 2 and the model's {max_positions}, not {max_model_len}"
        )


class EmbeddingHead:
    """Computes an embedding from the states of a text's tokens.

    dimensions: numbers of an embedding.
    """

    def __init__(self, directory: Path, config: PoolingConfig, hidden: int) -> None:
        """hidden: numbers of a state. Raises EngineError."""
        self._modes = config.modes
        self._steps: list[Callable[[Floats], Floats]] = []
        size = hidden * len(config.modes)
        for step in config.steps:
            compute, size = _load_step(directory, step, size)
            self._steps.append(compute)
        self.dimensions = min(size, config.truncate_dim or size)

    def compute(self, states: Floats) -> Floats:
        """Compute [dimensions] from [tokens, hidden]."""
        vector = np.concatenate([pool_states(states, mode) for mode in self._modes])
        for step in self._steps:
            vector = step(vector)
        return vector[: self.dimensions]


def _load_step(
    directory: Path, step: HeadStep, size: int
) -> tuple[Callable[[Floats], Floats], int]:
    """Load the weights of a step. Returns it, and the numbers of its result."""
    if isinstance(step, UnitLength):
        return _scale_to_unit_length, size
    inner = step.inner if isinstance(step, Dense) else step.size
    if inner != size:
        raise EngineError(
            f"{directory / step.path}: a module for vectors of {inner} numbers follows one that "
            f"computes {size}"
        )
    path = directory / step.path
    if not list(path.glob("*.safetensors")):
        raise EngineError(f"{path} contains no safetensors file; other formats may run code")
    tensors = Tensors(path)
    match step:
        case LayerNormalization():
            weight = tensors.take("norm.weight", size)
            bias = tensors.take("norm.bias", size)
            tensors.check_all_used()
            return partial(_normalize_layer, weight, bias), size
        case Dense():
            dense = _DenseLayer(step, tensors)
            tensors.check_all_used()
            return dense, step.outer


class _DenseLayer:
    def __init__(self, config: Dense, tensors: Tensors) -> None:
        self._weight = tensors.take("linear.weight", config.outer, config.inner)
        self._bias = tensors.take("linear.bias", config.outer) if config.has_bias else None
        self._activation = ACTIVATION_FUNCTIONS[config.activation]
        self._has_residual = config.has_residual
        self._projection = (
            tensors.take("residual.weight", config.outer, config.inner)
            if config.has_residual and config.inner != config.outer
            else None
        )

    def __call__(self, vector: Floats) -> Floats:
        product = self._weight @ vector
        if self._bias is not None:
            product += self._bias
        result = self._activation(product)
        if not self._has_residual:
            return result
        return result + (vector if self._projection is None else self._projection @ vector)


def _normalize_layer(weight: Floats, bias: Floats, vector: Floats) -> Floats:
    centered = vector - vector.mean(dtype=np.float32)
    deviation = np.sqrt(np.mean(centered * centered, dtype=np.float32) + np.float32(_NORM_EPS))
    return centered / deviation * weight + bias


def _scale_to_unit_length(vector: Floats) -> Floats:
    # In double precision, so that the length is 1 to the last bit that float32 has.
    doubles = vector.astype(np.float64)
    length = np.sqrt(doubles @ doubles)
    # A zero vector has no direction and stays unchanged.
    return (doubles / length).astype(np.float32) if length > 0 else vector


def build_embedding_info(
    config: PoolingConfig, dimensions: int, max_positions: int, max_model_len: int | None
) -> EmbeddingInfo:
    """Build the properties of an embedder's vectors.

    dimensions: numbers of a full vector.
    max_positions: longest input that the model can compute, tokens.
    max_model_len: the option; None is as configured in the directory.
    """
    return EmbeddingInfo(
        dimensions,
        max_model_len or min(max_positions, config.max_tokens or max_positions),
        config.modes[0],
        config.normalized,
        config.matryoshka,
        config.matryoshka_dimensions,
        config.prompt,
        config.query_prompt,
        config.document_prompt,
        config.similarity,
    )


def pool_states(states: Floats, pooling: Pooling) -> Floats:
    """Pool states [tokens, hidden] of one text to [hidden]."""
    match pooling:
        case Pooling.MEAN:
            return states.sum(axis=0) / np.float32(len(states))
        case Pooling.MEAN_SQRT_LEN:
            return states.sum(axis=0) / np.sqrt(np.float32(len(states)))
        case Pooling.WEIGHTED_MEAN:
            weights = np.arange(1, len(states) + 1, dtype=np.float32)
            return (states * weights[:, None]).sum(axis=0) / weights.sum()
        case Pooling.CLS:
            return states[0]
        case Pooling.LAST:
            return states[-1]
        case Pooling.MAX:
            return states.max(axis=0)


def build_embeddings(
    vectors: Sequence[NDArray[np.float32]], request: EmbedRequest, info: EmbeddingInfo
) -> Embeddings:
    """Build the embeddings. vectors: the pooled vectors at full length, one per input
    of the request.
    """
    dimensions = request.dimensions or info.dimensions
    normalize = info.normalized if request.normalize is None else request.normalize
    packed: list[bytes] = []
    for vector in vectors:
        values = vector[:dimensions]
        if normalize:
            values = _scale_to_unit_length(values)
        packed.append(values.astype("<f4", copy=False).tobytes())
    return Embeddings(tuple(packed), dimensions, sum(map(len, request.inputs)))
