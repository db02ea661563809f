"""The tiny engine, which runs the numpy Llama."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ...core.encoder_requests import EmbeddingInfo, Embeddings, EmbedRequest
from ...core.engine import Health
from ...core.request_checks import check_ids
from ..batching import (
    BatchingEngine,
    BlockFiles,
    EngineConfig,
    EngineLimits,
    build_rng,
)
from ..batching.sampler import RngFactory
from ..dynamic_batcher import Batcher
from ..pooled_outputs import build_embeddings
from .llama import Llama, TokenBatch, read_model
from .paged_attention import CHUNK, CHUNK_BLOCKS, count_chunks
from .paged_llama import PagedLlama

_MIN_KV_TOKENS = 32_768
_MAX_KV_TOKENS = 131_072
"""Bounds of the KV cache, which holds one longest context: the embedded model is for
demonstrations and tests, where each worker takes this memory.
"""
_TOKENS_PER_BATCH = 4 * CHUNK


def compute_mean_state(model: Llama, ids: tuple[int, ...]) -> NDArray[np.float32]:
    """Compute the mean of the last hidden states, [hidden], not normalized. The KV
    cache is freed after the call.
    """
    table = np.arange(count_chunks(len(ids)) * CHUNK_BLOCKS)
    cache = model.build_cache(len(table))
    total = np.zeros(model.config.hidden, np.float32)
    # In parts, since the activations of a long text would take many times the memory of
    # its cache.
    for begin in range(0, len(ids), _TOKENS_PER_BATCH):
        end = min(begin + _TOKENS_PER_BATCH, len(ids))
        positions = np.arange(begin, end)
        span = model.attention.build_span(
            0, end - begin, begin, table[: count_chunks(end) * CHUNK_BLOCKS]
        )
        batch = TokenBatch(
            ids=np.array(ids[begin:end]),
            positions=positions,
            slots=positions,
            singles=(),
            spans=(span,),
        )
        total += model.apply_final_norm(model.forward(batch, cache)[: end - begin]).sum(axis=0)
    return total / np.float32(len(ids))


class TinyEmbedder:
    """Implements `core.engine.Embedder` on its own thread, concurrent with the engine's
    steps.

    It supports shortened vectors (matryoshka): all numbers of a mean state are equally
    important.
    """

    def __init__(
        self, get_model: Callable[[], Llama], max_tokens: int, max_waiting: int = 1024
    ) -> None:
        """get_model: returns the model with its current weights; each text is computed
        with one version.
        """
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
        await self._batcher.start()

    async def stop(self) -> None:
        await self._batcher.stop()

    def health(self) -> Health:
        return self._batcher.health()

    async def embed(self, request: EmbedRequest) -> Embeddings:
        check_ids([id for ids in request.inputs for id in ids], self._vocab, "input")
        vectors = await self._batcher.run(request.inputs)
        return build_embeddings(vectors, request, self._embedding_info)


class TinyEngine(BatchingEngine):
    """A batching engine whose tokens and logprobs are bitwise independent of concurrent
    sequences.
    """

    def __init__(
        self,
        model: Llama,
        config: EngineConfig,
        rng_factory: RngFactory,
        clock: Callable[[], float] = time.monotonic,
        files: BlockFiles | None = None,
        *,
        populates_cache: bool = False,
    ) -> None:
        paged = PagedLlama(model, populates_cache=populates_cache)
        super().__init__(paged, config, rng_factory, clock, name="tiny-engine", files=files)
        self.embedder = TinyEmbedder(paged.get_model, config.max_model_len, config.max_num_waiting)
        """Started separately from the engine, on demand."""


def load(
    directory: Path,
    limits: EngineLimits | None = None,
    rng_factory: RngFactory = build_rng,
    files: BlockFiles | None = None,
    *,
    populates_cache: bool = False,
) -> TinyEngine:
    """Load the engine from a directory of config.json and *.safetensors. It is not
    started.

    rng_factory: builds the random generator of a sequence; by default seeded with the
        request's seed.
    files: as in BatchingEngine.
    populates_cache: take the memory of the KV cache at the start, not as it is used.

    Raises: EngineError for an unsupported model.
    """
    model = read_model(directory)
    config = (limits or EngineLimits()).build_config(
        max_positions=model.config.max_positions,
        num_kv_tokens=min(_MAX_KV_TOKENS, max(_MIN_KV_TOKENS, model.config.max_positions)),
        max_num_batched_tokens=512,
    )
    config = replace(config, allocates_at_start=populates_cache)
    return TinyEngine(model, config, rng_factory, files=files, populates_cache=populates_cache)
