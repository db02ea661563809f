"""Pooling models in GGUF files: embeddings of texts, scores of text pairs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.encoder_requests import (
    EmbeddingInfo,
    Embeddings,
    EmbedRequest,
    Pooling,
    RelevanceScores,
    ScoreRequest,
)
from ...core.engine import Health
from ...core.errors import EngineError, Overloaded
from ...core.request_checks import check_ids
from ...core.tokenizer import Tokenizer
from ..activations import compute_sigmoid
from ..llamacpp_child import LaunchSettings
from ..pooled_outputs import build_embeddings
from .gguf_metadata import GgufMetadata
from .gguf_settings import (
    read_dimensions,
    read_max_positions,
    read_pooling_type,
)
from .load import KV_TYPES, LlamaCppOptions, choose_threads, start_checked
from .process import LlamaCppProcess
from .server_lifecycle import LlamaCppConnection

_POOLINGS = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
"""Poolings by llama.cpp's llama_pooling_type."""


_RANK_POOLING = 4
"""llama.cpp's LLAMA_POOLING_TYPE_RANK, of rerankers."""


_DEFAULT_MAX_INPUT_TOKENS = 8192
"""Default maximum input of a pooling model, tokens: an input is computed in one step,
which takes memory.
"""


class _PoolingEngine:
    """The base of pooling engines. Inputs are computed one at a time, so that results
    do not depend on a batch.
    """

    def __init__(
        self, connection: LlamaCppConnection, vocab: int, max_tokens: int, max_waiting: int
    ) -> None:
        self._connection = connection
        self._vocab = vocab
        self._max_waiting = max_waiting
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
        return Health(
            problem is None, problem, count - running, running, self._connection.is_broken
        )

    async def _compute(self, inputs: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
        check_ids([id for ids in inputs for id in ids], self._vocab, "input")
        if len(self._tasks) > self._max_waiting:
            raise Overloaded(
                f"{len(self._tasks)} requests are already queued or running; retry later."
            )
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
    """Implements `core.engine.Embedder`."""

    def __init__(
        self,
        connection: LlamaCppConnection,
        vocab: int,
        embedding_info: EmbeddingInfo,
        max_waiting: int,
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
    """Implements `core.engine.Scorer`: a score is the first output of a reranker's
    head.
    """

    async def score(self, request: ScoreRequest) -> RelevanceScores:
        vectors = await self._compute([pair.ids for pair in request.pairs])
        check_numbers([numbers[:1] for numbers in vectors])
        numbers = [float(numbers[0]) for numbers in vectors]
        use_sigmoid = request.activation is None or request.activation
        scores = tuple(map(compute_sigmoid, numbers)) if use_sigmoid else tuple(numbers)
        return RelevanceScores(scores, sum(len(pair.ids) for pair in request.pairs))


def check_numbers(vectors: Sequence[NDArray[np.float32]]) -> None:
    """Raise EngineError for a vector with non-finite numbers."""
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise EngineError("llama.cpp returned invalid numbers.")


def load_pooling_engine(
    metadata: GgufMetadata,
    tokenizer: Tokenizer,
    *,
    max_model_len: int | None = None,
    max_waiting: int = 1024,
    options: LlamaCppOptions | None = None,
) -> LlamaCppEmbedder | LlamaCppScorer:
    """Load a pooling engine, for embeddings or scores. max_model_len: maximum input,
    tokens.
    """
    pooling = read_pooling_type(metadata)
    longest = read_max_positions(metadata)
    resolved = options or LlamaCppOptions()
    if pooling is None or (pooling != _RANK_POOLING and pooling not in _POOLINGS):
        raise EngineError(
            f"{metadata.path}: a model with pooling {pooling} does not support embeddings"
        )
    if max_model_len is not None and not 1 < max_model_len <= longest:
        raise EngineError(
            f"max_model_len must be between 2 and the model's {longest}, not {max_model_len}"
        )
    tokens = max_model_len or min(longest, _DEFAULT_MAX_INPUT_TOKENS)
    launch = LaunchSettings(
        path=str(metadata.path),
        context=tokens,
        sequences=1,
        batch=tokens,
        ubatch=tokens,
        kv_type=KV_TYPES[resolved.dtype],
        gpu_layers=resolved.gpu_layers,
        threads=choose_threads(resolved.threads),
        pooling=pooling,
    )
    connection = LlamaCppConnection(start_checked(LlamaCppProcess(launch), tokenizer, metadata))
    if pooling == _RANK_POOLING:
        return LlamaCppScorer(connection, tokenizer.vocab_size, tokens, max_waiting)
    embedding_info = EmbeddingInfo(read_dimensions(metadata), tokens, _POOLINGS[pooling])
    return LlamaCppEmbedder(connection, tokenizer.vocab_size, embedding_info, max_waiting)
