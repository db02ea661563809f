"""Embeddings from pooled vectors: truncated, normalized, encoded."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from ..core.encoder_requests import EmbeddingInfo, Embeddings, EmbedRequest


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
