"""Embeddings from the states of tokens: pooled, truncated, normalized, encoded."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from ..core.encoder_requests import EmbeddingInfo, Embeddings, EmbedRequest, Pooling
from ..core.errors import EngineError
from .encoder_config import PoolingConfig

Floats = NDArray[np.float32]


def check_max_model_len(max_model_len: int | None, max_positions: int) -> None:
    """Raise EngineError if the option exceeds the model's positions."""
    if max_model_len is not None and not 1 < max_model_len <= max_positions:
        raise EngineError(
            f"max_model_len must be between 2 and the model's {max_positions}, not {max_model_len}"
        )


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
        config.pooling,
        config.normalized,
        config.matryoshka,
        config.matryoshka_dimensions,
        config.prompt,
    )


def pool_states(states: Floats, pooling: Pooling) -> Floats:
    """Pool states [tokens, hidden] of one text to [hidden]."""
    match pooling:
        case Pooling.MEAN:
            return states.sum(axis=0) / np.float32(len(states))
        case Pooling.MEAN_SQRT_LEN:
            return states.sum(axis=0) / np.sqrt(np.float32(len(states)))
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
            # In double precision, so that the length is 1 to the last bit that float32
            # has.
            doubles = values.astype(np.float64)
            length = np.sqrt(doubles @ doubles)
            # A zero vector has no direction and stays unchanged.
            values = (doubles / length).astype(np.float32) if length > 0 else values
        packed.append(values.astype("<f4", copy=False).tobytes())
    return Embeddings(tuple(packed), dimensions, sum(map(len, request.inputs)))


def compute_sigmoid(number: float) -> float:
    # Neither form overflows. The second keeps the digits of small results, which rank
    # irrelevant documents.
    return 1 / (1 + exp(-number)) if number >= 0 else exp(number) / (1 + exp(number))
