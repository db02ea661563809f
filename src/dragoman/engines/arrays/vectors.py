"""The last step of every embedding, the same for all engines: shorten, normalise, pack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.embeddings import EmbeddingInfo, Embeddings, EmbedRequest


def build_embeddings(vectors: Sequence[NDArray[np.float32]], request: EmbedRequest, info: EmbeddingInfo) -> Embeddings:
    """vectors: whole ones as the model's pooling made them, one an input of the request."""
    dimensions = request.dimensions or info.dimensions
    normalize = info.normalized if request.normalize is None else request.normalize
    packed = tuple(_normalize(vector[:dimensions], normalize).astype("<f4", copy=False).tobytes() for vector in vectors)
    return Embeddings(packed, dimensions, sum(map(len, request.inputs)))


def _normalize(vector: NDArray[np.float32], normalize: bool) -> NDArray[np.float32]:
    """A vector of nothing but zeros has no direction, and stays what it is."""
    if not normalize:
        return vector
    # In double precision, so that the length is 1 to the last bit that float32 has.
    doubles = vector.astype(np.float64)
    length = np.sqrt(doubles @ doubles)
    return (doubles / length).astype(np.float32) if length > 0 else vector
