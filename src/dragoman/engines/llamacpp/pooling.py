"""Pooling models in GGUF files: embeddings of texts, or scores of text pairs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.embeddings import EmbeddingInfo, Embeddings, EmbedRequest, RelevanceScores, ScoreRequest
from ...core.engine import Health, check_ids
from ...core.errors import EngineError, Overloaded
from ..arrays.embeddings import build_embeddings
from .client import LlamaCppConnection


class _PoolingEngine:
    """Sends one input at a time, so that results do not depend on the rest of a batch."""

    def __init__(self, connection: LlamaCppConnection, vocab: int, max_tokens: int, max_waiting: int) -> None:
        self._connection, self._vocab, self._max_waiting = connection, vocab, max_waiting
        self.max_tokens = max_tokens
        self._slot = asyncio.Semaphore(1)
        self._tasks: set[asyncio.Task[list[NDArray[np.float32]]]] = set()

    async def start(self) -> None:
        await self._connection.start()

    async def stop(self) -> None:
        """Stop. Pending requests fail as their connections close."""
        tasks = list(self._tasks)
        await self._connection.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def health(self) -> Health:
        count = len(self._tasks)
        running = min(count, 1)
        problem = self._connection.problem
        return Health(problem is None, problem, count - running, running, self._connection.is_broken)

    async def _compute(self, inputs: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
        check_ids([id for ids in inputs for id in ids], self._vocab, "input")
        if len(self._tasks) > self._max_waiting:
            raise Overloaded(f"{len(self._tasks)} requests are already queued or running; retry later.")
        task = asyncio.create_task(self._embed(inputs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            # Cancelled by `stop`, not by the client.
            if task.cancelled() and not self._connection.is_open:
                raise EngineError("The engine is shutting down.") from None
            task.cancel()
            raise

    async def _embed(self, inputs: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
        async with self._slot:
            return await self._connection.client.embed(inputs)


class LlamaCppEmbedder(_PoolingEngine):
    """A `core.engine.Embedder`."""

    def __init__(
        self, connection: LlamaCppConnection, vocab: int, embedding_info: EmbeddingInfo, max_waiting: int
    ) -> None:
        super().__init__(connection, vocab, embedding_info.max_tokens, max_waiting)
        self._embedding_info = embedding_info

    @property
    def embedding_info(self) -> EmbeddingInfo:
        return self._embedding_info

    async def embed(self, request: EmbedRequest) -> Embeddings:
        vectors = await self._compute(request.inputs)
        check_numbers(vectors)
        return build_embeddings(vectors, request, self._embedding_info)


class LlamaCppScorer(_PoolingEngine):
    """A `core.engine.Scorer`: the first output of a reranker's head."""

    async def score(self, request: ScoreRequest) -> RelevanceScores:
        vectors = await self._compute([pair.ids for pair in request.pairs])
        check_numbers([numbers[:1] for numbers in vectors])
        numbers = [float(numbers[0]) for numbers in vectors]
        use_sigmoid = request.activation is None or request.activation
        scores = tuple(map(_sigmoid, numbers)) if use_sigmoid else tuple(numbers)
        return RelevanceScores(scores, sum(len(pair.ids) for pair in request.pairs))


def check_numbers(vectors: Sequence[NDArray[np.float32]]) -> None:
    """Raise EngineError for a vector with non-finite numbers."""
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise EngineError("llama.cpp returned invalid numbers.")


def _sigmoid(number: float) -> float:
    return 1 / (1 + math.exp(-number)) if number >= 0 else 1 - 1 / (1 + math.exp(number))
