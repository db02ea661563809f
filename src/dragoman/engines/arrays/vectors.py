"""The last step of embeddings in all engines: truncate, normalize, encode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.embeddings import EmbeddingInfo, Embeddings, EmbedRequest


def build_embeddings(vectors: Sequence[NDArray[np.float32]], request: EmbedRequest, info: EmbeddingInfo) -> Embeddings:
    """Build the embeddings. vectors: full pooled ones, one per input of the request."""
    dimensions = request.dimensions or info.dimensions
    normalize = info.normalized if request.normalize is None else request.normalize
    packed = tuple(_normalize(vector[:dimensions], normalize).astype("<f4", copy=False).tobytes() for vector in vectors)
    return Embeddings(packed, dimensions, sum(map(len, request.inputs)))


def _normalize(vector: NDArray[np.float32], normalize: bool) -> NDArray[np.float32]:
    """Normalize a vector; a zero vector has no direction and stays unchanged."""
    if not normalize:
        return vector
    # In double precision, so that the length is 1 to the last bit that float32 has.
    doubles = vector.astype(np.float64)
    length = np.sqrt(doubles @ doubles)
    return (doubles / length).astype(np.float32) if length > 0 else vector
