"""The interfaces of models that read texts but generate none: embedders, scorers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .encoder_requests import (
    EmbeddingInfo,
    Embeddings,
    EmbedRequest,
    EncodingTask,
    RelevanceScores,
    ScoreRequest,
    TextEmbedRequest,
    TextPairs,
)
from .engine import Health


class Encoder(Protocol):
    """A model that reads texts and generates none. Methods are called on the event loop
    and must not block it.
    """

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Release all resources. Running requests fail with EngineError."""
        ...

    def health(self) -> Health: ...


class Embedder(Encoder, Protocol):
    """A model that maps texts to vectors."""

    @property
    def embedding_info(self) -> EmbeddingInfo: ...

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Return vectors in input order. Equal inputs yield bit-identical vectors,
        whatever else is in the batch.

        Cancelling the call frees its work.

        Raises:
            RequestError: an id is outside the vocabulary.
            Overloaded: the queue is full.
            EngineError: the engine failed.
        """
        ...


class Scorer(Encoder, Protocol):
    """A model that maps pairs of texts to numbers: a cross-encoder."""

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of one pair."""
        ...

    async def score(self, request: ScoreRequest) -> RelevanceScores:
        """Return scores in input order. Raises the same errors as `Embedder.embed`."""
        ...


@runtime_checkable
class TextEncoder(Encoder, Protocol):
    """A model on another server that embeds or scores texts and tokenizes them itself."""

    @property
    def encoding_tasks(self) -> frozenset[EncodingTask]:
        """The tasks of the model; empty for one that only generates."""
        ...

    @property
    def scores_texts(self) -> bool:
        """Whether `score_texts` works. A model without it may still embed queries and
        documents.
        """
        ...

    async def embed_texts(self, request: TextEmbedRequest) -> Embeddings:
        """Return vectors in input order. Cancelling the call frees its work.

        Raises:
            RequestError: the model does not support the request.
            Overloaded: too many requests are running.
            EngineError: the engine failed.
        """
        ...

    async def score_texts(self, pairs: TextPairs) -> RelevanceScores:
        """Return scores in the order of the documents. Raises the same errors as
        `embed_texts`.
        """
        ...
