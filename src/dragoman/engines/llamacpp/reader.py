"""Models in GGUF files that read and write nothing: texts to vectors, or pairs of texts to scores."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.embed import Embeddings, EmbedRequest, EmbedTraits, ScoreRequest, Scores
from ...core.engine import Health
from ...core.errors import EngineError, Overloaded, RequestError
from ..arrays.vectors import embeddings
from .link import Link


class _Reader:
    """llama.cpp computes one input at a time, so that nothing beside it shows in its numbers."""

    def __init__(self, link: Link, vocab: int, max_tokens: int, max_waiting: int) -> None:
        self._link, self._vocab, self._max_waiting = link, vocab, max_waiting
        self.max_tokens = max_tokens
        self._turn = asyncio.Semaphore(1)
        self._asked: set[asyncio.Task[list[NDArray[np.float32]]]] = set()

    async def start(self) -> None:
        await self._link.start()

    async def stop(self) -> None:
        """What is still under way fails: its connection breaks off."""
        asked = list(self._asked)
        await self._link.stop()
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    def health(self) -> Health:
        count = len(self._asked)
        running = min(count, 1)
        trouble = self._link.trouble
        return Health(trouble is None, trouble, count - running, running, self._link.broken)

    async def _read(self, inputs: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
        wrong = next((id for ids in inputs for id in ids if not 0 <= id < self._vocab), None)
        if wrong is not None:
            raise RequestError(f"Token id {wrong} is not in this model's vocabulary of {self._vocab}.", param="input")
        if len(self._asked) > self._max_waiting:
            raise Overloaded(f"{len(self._asked)} requests are already queued or running; retry later.")
        task = asyncio.create_task(self._ask(inputs))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled() and not self._link.open:
                raise EngineError("The engine is shutting down.") from None
            task.cancel()
            raise

    async def _ask(self, inputs: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
        async with self._turn:
            return await self._link.client.embed(inputs)


class LlamaCppEmbedder(_Reader):
    """A `core.engine.Embedder`."""

    def __init__(self, link: Link, vocab: int, traits: EmbedTraits, max_waiting: int) -> None:
        super().__init__(link, vocab, traits.max_tokens, max_waiting)
        self._traits = traits

    @property
    def traits(self) -> EmbedTraits:
        return self._traits

    async def embed(self, request: EmbedRequest) -> Embeddings:
        read = await self._read(request.inputs)
        check_numbers(read)
        return embeddings(read, request, self._traits)


class LlamaCppScorer(_Reader):
    """A `core.engine.Scorer`: the first of the numbers that a reranker's head gives."""

    async def score(self, request: ScoreRequest) -> Scores:
        read = await self._read([pair.ids for pair in request.pairs])
        check_numbers([numbers[:1] for numbers in read])
        numbers = [float(numbers[0]) for numbers in read]
        activated = request.activation is None or request.activation
        scores = tuple(map(_sigmoid, numbers)) if activated else tuple(numbers)
        return Scores(scores, sum(len(pair.ids) for pair in request.pairs))


def check_numbers(vectors: Sequence[NDArray[np.float32]]) -> None:
    """Raises EngineError for a vector with something in it that is not a number."""
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise EngineError("llama.cpp returned invalid numbers.")


def _sigmoid(number: float) -> float:
    return 1 / (1 + math.exp(-number)) if number >= 0 else 1 - 1 / (1 + math.exp(number))
