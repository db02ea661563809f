"""Engines that embed texts or score pairs of texts in batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..core.encoder_requests import (
    EmbeddingInfo,
    Embeddings,
    EmbedRequest,
    RelevanceScores,
    ScoreRequest,
)
from ..core.engine import Health
from ..core.request_checks import check_ids
from .activations import ACTIVATION_FUNCTIONS, compute_sigmoid
from .dynamic_batcher import Batcher
from .pooled_outputs import build_embeddings

Floats = NDArray[np.float32]

_MAX_BATCH_TOKENS = 4096
"""Tokens of a batch: larger matrix products are no faster."""


class EncoderInput(Struct, frozen=True):
    """One text, or a pair. types: the type of each token; None if all are 0."""

    ids: tuple[int, ...]
    types: tuple[int, ...] | None = None


class BatchNetwork(Protocol):
    """A network that maps each input to numbers.

    vocab: the number of its token ids.
    """

    @property
    def vocab(self) -> int: ...

    def compute(self, batch: Sequence[EncoderInput]) -> list[Floats]:
        """Called from one thread at a time."""
        ...


class _BatchedEngine:
    """A network on its own thread."""

    def __init__(self, network: BatchNetwork, max_tokens: int, max_waiting: int) -> None:
        self._vocab = network.vocab
        self.max_tokens = max_tokens
        self._batcher: Batcher[EncoderInput, Floats] = Batcher(
            network.compute,
            lambda item: len(item.ids),
            max_batch_tokens=_MAX_BATCH_TOKENS,
            max_waiting=max_waiting,
            name="encoder",
            probe=EncoderInput((0,)),
        )

    async def start(self) -> None:
        await self._batcher.start()

    async def stop(self) -> None:
        await self._batcher.stop()

    def health(self) -> Health:
        return self._batcher.health()

    async def _run(self, inputs: Iterable[EncoderInput]) -> list[Floats]:
        batch = tuple(inputs)
        check_ids([id for item in batch for id in item.ids], self._vocab, "input")
        return await self._batcher.run(batch)


class BatchedEmbedder(_BatchedEngine):
    """A `core.engine.Embedder`."""

    def __init__(
        self, network: BatchNetwork, embedding_info: EmbeddingInfo, max_waiting: int = 1024
    ) -> None:
        """network: computes embeddings."""
        super().__init__(network, embedding_info.max_tokens, max_waiting)
        self._embedding_info = embedding_info

    @property
    def embedding_info(self) -> EmbeddingInfo:
        return self._embedding_info

    async def embed(self, request: EmbedRequest) -> Embeddings:
        vectors = await self._run(EncoderInput(ids) for ids in request.inputs)
        return build_embeddings(vectors, request, self._embedding_info)


class BatchedScorer(_BatchedEngine):
    """A `core.engine.Scorer`."""

    def __init__(
        self,
        network: BatchNetwork,
        activation: str,
        max_tokens: int,
        max_waiting: int = 1024,
        *,
        query_prompt: str = "",
    ) -> None:
        """network: computes one number for each pair.
        activation: the last function of a score, by default.
        query_prompt: text that the model expects before every query.
        """
        super().__init__(network, max_tokens, max_waiting)
        self._activation = activation
        self.query_prompt = query_prompt

    async def score(self, request: ScoreRequest) -> RelevanceScores:
        logits = await self._run(EncoderInput(pair.ids, pair.types) for pair in request.pairs)
        numbers = [float(logit[0]) for logit in logits]
        scores = compute_scores(numbers, self._activation, request.activation)
        return RelevanceScores(scores, sum(len(pair.ids) for pair in request.pairs))


def compute_scores(
    logits: Sequence[float], activation: str, wanted: bool | None
) -> tuple[float, ...]:
    """Compute scores. activation: the model's function. wanted: as in ScoreRequest."""
    if wanted is None:
        name = activation
    elif wanted:
        name = "Sigmoid" if activation == "Identity" else activation
    else:
        name = "Identity"
    match name:
        case "Identity":
            return tuple(logits)
        case "Sigmoid":
            # In double precision, which keeps the order of the smallest scores.
            return tuple(map(compute_sigmoid, logits))
        case _:
            values = ACTIVATION_FUNCTIONS[name](np.array(logits, np.float32))
            return tuple(values.tolist())
