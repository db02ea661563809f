"""Embeddings from a Llama: the mean of its last hidden states. Uses its own KV cache.

A Llama is not trained for embeddings: texts with common words have similar vectors, and no more is promised.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...core.embeddings import EmbeddingInfo, Embeddings, EmbedRequest
from ...core.engine import Health, check_ids
from ..arrays.batcher import Batcher
from ..arrays.vectors import build_embeddings
from .attention import CHUNK, CHUNK_BLOCKS, count_chunks
from .model import Llama, TokenBatch

_TOKENS_PER_BATCH = 4 * CHUNK


def compute_mean_state(model: Llama, ids: tuple[int, ...]) -> NDArray[np.float32]:
    """Compute the mean state, [hidden], not normalized. The KV cache is freed after the call."""
    table = np.arange(count_chunks(len(ids)) * CHUNK_BLOCKS)
    cache = model.build_cache(len(table))
    total = np.zeros(model.config.hidden, np.float32)
    # In parts, since the activations of a long text would take many times the memory of its cache.
    for begin in range(0, len(ids), _TOKENS_PER_BATCH):
        end = min(begin + _TOKENS_PER_BATCH, len(ids))
        positions = np.arange(begin, end)
        span = model.attention.build_span(0, end - begin, begin, table[: count_chunks(end) * CHUNK_BLOCKS])
        batch = TokenBatch(
            ids=np.array(ids[begin:end]), positions=positions, slots=positions, singles=(), spans=(span,)
        )
        total += model.apply_final_norm(model.forward(batch, cache)[: end - begin]).sum(axis=0)
    return total / np.float32(len(ids))


class TinyEmbedder:
    """A `core.engine.Embedder` on its own thread, concurrent with the engine's steps.

    matryoshka: supported, since a mean of states has no order of importance: any prefix is as good as others.
    """

    def __init__(self, get_model: Callable[[], Llama], max_tokens: int, max_waiting: int = 1024) -> None:
        """get_model: returns the model with its current weights; each text is computed with one version."""
        config = get_model().config
        self._vocab = config.vocab
        self._embedding_info = EmbeddingInfo(config.hidden, max_tokens, matryoshka=True)
        self._batcher: Batcher[tuple[int, ...], NDArray[np.float32]] = Batcher(
            lambda batch: [compute_mean_state(get_model(), ids) for ids in batch],
            len,
            max_waiting=max_waiting,
            name="tiny-embedder",
        )

    @property
    def embedding_info(self) -> EmbeddingInfo:
        return self._embedding_info

    async def start(self) -> None:
        self._batcher.start()

    async def stop(self) -> None:
        await self._batcher.stop()

    def health(self) -> Health:
        return self._batcher.health()

    async def embed(self, request: EmbedRequest) -> Embeddings:
        check_ids([id for ids in request.inputs for id in ids], self._vocab, "input")
        vectors = await self._batcher.run(request.inputs)
        return build_embeddings(vectors, request, self._embedding_info)
