"""The tiny engine, which runs the numpy Llama: the Llama as a batching model,
embeddings, and loading.

An embedding is the mean of the last hidden states. A Llama is not trained for
embeddings: expect only that texts with common words have similar vectors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...core.embeddings import EmbedRequest, EmbeddingInfo, Embeddings
from ...core.engine import Health, check_ids
from ..arrays import Batcher, Tensors, build_embeddings
from ..batching import (
    BLOCK_SIZE,
    BatchingEngine,
    BlockFiles,
    Chunk,
    EngineConfig,
    EngineLimits,
    NumpySampledRows,
    SamplingState,
    build_rng,
)
from ..batching.sampler import RngFactory
from .model import (
    CHUNK,
    CHUNK_BLOCKS,
    Llama,
    QuerySpan,
    SingleQueries,
    TokenBatch,
    count_chunks,
    read_model,
)

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class PagedLlama:
    """Implements `batching.Model` with a Llama."""

    def __init__(self, model: Llama) -> None:
        self._model = model

    @property
    def vocab(self) -> int:
        return self._model.config.vocab

    @property
    def max_positions(self) -> int:
        return self._model.config.max_positions

    @property
    def rope_window(self) -> None:
        return None

    @property
    def has_state(self) -> bool:
        return False

    def get_model(self) -> Llama:
        """Return the model with its current weights."""
        return self._model

    def build_runner(self, num_blocks: int, num_state_slots: int = 0) -> LlamaRunner:
        del num_state_slots
        return LlamaRunner(self.get_model, num_blocks)

    def prepare_weights(self, tensors: Tensors) -> Callable[[], None]:
        model = self._model.with_weights(tensors)

        def apply() -> None:
            self._model = model

        return apply

    def prepare_discard(self) -> None:
        """Return None: discarding is not supported, the weights stay in memory."""


class LlamaRunner:
    """Implements `batching.Runner`."""

    def __init__(self, get_model: Callable[[], Llama], num_blocks: int) -> None:
        self._get_model = get_model
        self._cache = get_model().build_cache(num_blocks)

    def close(self) -> None:
        self._cache = self._cache[:, :0]

    def forward(self, chunks: Sequence[Chunk]) -> LlamaStates:
        # Read once per step: weights are replaced only between steps.
        model = self._get_model()
        # Masked entries have weight 0, but 0 * NaN is NaN, so stale values could affect
        # a sequence.
        new_blocks = [
            block
            for chunk in chunks
            for block in chunk.sequence.blocks[-(-chunk.begin // BLOCK_SIZE) :]
        ]
        if new_blocks:
            self._cache[:, new_blocks] = 0
        order, batch = _build_batch(model, chunks)
        rows = model.forward(batch, self._cache)
        starts = [0] * len(chunks)
        row = 0
        for index in order:
            starts[index] = row
            row += chunks[index].num_tokens
        return LlamaStates(model, rows, starts, [chunk.num_tokens for chunk in chunks])

    def save(self, block: int) -> bytes:
        return self._cache[:, block].tobytes()

    def restore(self, block: int, contents: bytes) -> None:
        self._cache[:, block] = np.frombuffer(contents, np.float32).reshape(len(self._cache), -1)


class LlamaStates:
    """The last hidden states of a step. starts, lengths: first row and number of rows
    of each chunk.
    """

    def __init__(self, model: Llama, rows: Floats, starts: list[int], lengths: list[int]) -> None:
        self._model = model
        self._rows = rows
        self._starts = starts
        self._lengths = lengths

    def compute_last_logits(self, indices: Sequence[int]) -> Floats:
        return self._model.compute_logits(
            self._rows[[self._starts[index] + self._lengths[index] - 1 for index in indices]]
        )

    def sample(
        self, indices: Sequence[int], states: Sequence[SamplingState], masks: Sequence[bytes | None]
    ) -> NumpySampledRows:
        return NumpySampledRows(self.compute_last_logits(indices), states, masks)

    def compute_span_logits(self, index: int, begin: int, end: int) -> Floats:
        start = self._starts[index]
        return self._model.compute_logits(self._rows[start + begin : start + end])


def _build_batch(model: Llama, chunks: Sequence[Chunk]) -> tuple[list[int], TokenBatch]:
    """Build the batch: single tokens first, grouped by similar length. Returns the
    chunks' indices in row order.
    """
    groups: dict[int, list[int]] = {}
    for index, chunk in enumerate(chunks):
        # Decoding sequences attend in one batched product; grouping them by length
        # limits the padding.
        if chunk.num_tokens == 1:
            groups.setdefault(count_chunks(chunk.end), []).append(index)
    singles: list[SingleQueries] = []
    order: list[int] = []
    for width, group in groups.items():
        positions = np.array([chunks[index].begin for index in group])
        tables = np.zeros((len(group), width * CHUNK_BLOCKS), np.int64)
        for table, index in zip(tables, group, strict=True):
            blocks = chunks[index].sequence.blocks
            table[: len(blocks)] = blocks
        singles.append(model.attention.build_single(len(order), positions, tables))
        order += group
    prefills = [index for index, chunk in enumerate(chunks) if chunk.num_tokens > 1]
    starts = np.cumsum([len(order), *(chunks[index].num_tokens for index in prefills)])[
        :-1
    ].tolist()
    spans: list[QuerySpan] = []
    for start, index in zip(starts, prefills, strict=True):
        chunk = chunks[index]
        table = np.zeros(count_chunks(chunk.end) * CHUNK_BLOCKS, np.int64)
        table[: len(chunk.sequence.blocks)] = chunk.sequence.blocks
        spans.append(model.attention.build_span(start, chunk.num_tokens, chunk.begin, table))
    order += prefills
    tokens = [
        (chunks[index].sequence, position)
        for index in order
        for position in range(chunks[index].begin, chunks[index].end)
    ]
    return order, TokenBatch(
        ids=np.array([sequence.tokens[position] for sequence, position in tokens]),
        positions=np.array([position for _, position in tokens]),
        slots=np.array([sequence.find_slot(position) for sequence, position in tokens]),
        singles=tuple(singles),
        spans=tuple(spans),
    )


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
        self._batcher.start()

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
    ) -> None:
        paged = PagedLlama(model)
        super().__init__(paged, config, rng_factory, clock, name="tiny-engine", files=files)
        self.embedder = TinyEmbedder(paged.get_model, config.max_model_len, config.max_num_waiting)
        """Started separately from the engine, on demand."""


def load(
    directory: Path,
    limits: EngineLimits | None = None,
    rng_factory: RngFactory = build_rng,
    files: BlockFiles | None = None,
) -> TinyEngine:
    """Load the engine from a directory of config.json and *.safetensors. It is not
    started.

    rng_factory: builds the random generator of a sequence; by default seeded with the
        request's seed.
    files: as in BatchingEngine.

    Raises: EngineError for an unsupported model.
    """
    model = read_model(directory)
    config = (limits or EngineLimits()).build_config(
        max_positions=model.config.max_positions, num_kv_tokens=131072, max_num_batched_tokens=512
    )
    return TinyEngine(model, config, rng_factory, files=files)


def find_bundled_model() -> Path:
    """Find the model bundled with this package."""
    return Path(str(resources.files(__package__ or "") / "data"))
