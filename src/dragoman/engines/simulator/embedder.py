"""Simulated embeddings: vectors derived from the tokens alone, after the duration of a prefill."""

from __future__ import annotations

import math
from hashlib import shake_256

import numpy as np

from ...core.embeddings import EmbeddingInfo, Embeddings, EmbedRequest
from ...core.engine import Health
from .engine import SimulatorEngine


class SimulatorEmbedder:
    """A `core.engine.Embedder` beside an engine that is started and stopped by itself."""

    def __init__(self, engine: SimulatorEngine, dimensions: int) -> None:
        self._engine = engine
        self._embedding_info = EmbeddingInfo(dimensions, engine.max_model_len, matryoshka=True)

    @property
    def embedding_info(self) -> EmbeddingInfo:
        return self._embedding_info

    async def start(self) -> None:
        """Do nothing: the generating engine has its own lifecycle."""

    async def stop(self) -> None:
        """Do nothing: the generating engine has its own lifecycle."""

    def health(self) -> Health:
        return self._engine.health()

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Embed the inputs. A short vector is, before normalization, a prefix of a longer one."""
        self._embedding_info.check_dimensions(request.dimensions)
        size = request.dimensions or self._embedding_info.dimensions
        tokens = await self._engine.simulate_prefill(request.inputs)
        vectors = tuple(_generate_vector(ids, size, request.normalize is not False) for ids in request.inputs)
        return Embeddings(vectors, size, tokens)


def _generate_vector(ids: tuple[int, ...], size: int, normalize: bool) -> bytes:
    # A function of extendable output: the digest of a short vector is a prefix of that of a longer one.
    raw = shake_256(np.array(ids, "<i8").tobytes()).digest(4 * size)
    vector = np.frombuffer(raw, "<u4").astype(np.float64) / 2**31 - 1
    length = math.sqrt(float(vector @ vector)) if normalize else 1.0
    return (vector / (length or 1.0)).astype("<f4").tobytes()
