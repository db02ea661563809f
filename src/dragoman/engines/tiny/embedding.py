"""A text's vector from a Llama: the mean of its last hidden states. Knows nothing of the engine's pool.

A Llama was not trained for this. Texts with words in common come out close to one another; more is not promised.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...core.embed import Embeddings, EmbedRequest, EmbedTraits
from ...core.engine import Health
from ...core.errors import RequestError
from ..arrays.batcher import Batcher
from ..arrays.vectors import embeddings
from .attention import CHUNK, CHUNK_BLOCKS, chunks_of
from .model import Batch, Llama

_AT_ONCE = 4 * CHUNK


def mean_state(model: Llama, ids: tuple[int, ...]) -> NDArray[np.float32]:
    """[hidden] numbers, not normalised. Keys and values are kept for the call alone."""
    table = np.arange(chunks_of(len(ids)) * CHUNK_BLOCKS)
    cache = model.new_cache(len(table))
    total = np.zeros(model.config.hidden, np.float32)
    for begin in range(0, len(ids), _AT_ONCE):
        end = min(begin + _AT_ONCE, len(ids))
        positions = np.arange(begin, end)
        span = model.attention.span(0, end - begin, begin, table[: chunks_of(end) * CHUNK_BLOCKS])
        batch = Batch(ids=np.array(ids[begin:end]), positions=positions, slots=positions, singles=(), spans=(span,))
        total += model.final(model.forward(batch, cache)[: end - begin]).sum(axis=0)
    return total / np.float32(len(ids))


class TinyEmbedder:
    """A `core.engine.Embedder` on a thread of its own, beside the engine's steps.

    matryoshka: the numbers of a mean of states have no order, so that some of them say as much as others.
    """

    def __init__(self, now: Callable[[], Llama], max_tokens: int, max_waiting: int = 1024) -> None:
        """now: the model with the weights that it has at present; each text is read with one and the same."""
        config = now().config
        self._vocab = config.vocab
        self._traits = EmbedTraits(config.hidden, max_tokens, matryoshka=True)
        self._batcher: Batcher[tuple[int, ...], NDArray[np.float32]] = Batcher(
            lambda batch: [mean_state(now(), ids) for ids in batch], len, max_waiting=max_waiting, name="tiny-embedder"
        )

    @property
    def traits(self) -> EmbedTraits:
        return self._traits

    async def start(self) -> None:
        self._batcher.start()

    async def stop(self) -> None:
        await self._batcher.stop()

    def health(self) -> Health:
        return self._batcher.health()

    async def embed(self, request: EmbedRequest) -> Embeddings:
        wrong = next((id for ids in request.inputs for id in ids if not 0 <= id < self._vocab), None)
        if wrong is not None:
            raise RequestError(f"Token id {wrong} is not in this model's vocabulary of {self._vocab}.", param="input")
        vectors = await self._batcher.run(request.inputs)
        return embeddings(vectors, request, self._traits)
