"""The numpy Llama as a model of the batching engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from ..batching import (
    BLOCK_SIZE,
    Chunk,
    NumpySampledRows,
    SamplingState,
)
from ..hardware import populate_memory
from ..safetensors_reader import Tensors
from .llama import Llama, TokenBatch
from .paged_attention import CHUNK_BLOCKS, QuerySpan, SingleQueries, count_chunks

Floats = NDArray[np.float32]


Ints = NDArray[np.int64]


class PagedLlama:
    """Implements `batching.Model` with a Llama."""

    def __init__(self, model: Llama, *, populates_cache: bool = False) -> None:
        self._model = model
        self._populates_cache = populates_cache

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
        return LlamaRunner(self.get_model, num_blocks, populates_cache=self._populates_cache)

    def prepare_weights(self, tensors: Tensors) -> Callable[[], None]:
        model = self._model.with_weights(tensors)

        def apply() -> None:
            self._model = model

        return apply

    def prepare_discard(self) -> None:
        """Return None: discarding is not supported, the weights stay in memory."""


class LlamaRunner:
    """Implements `batching.Runner`."""

    def __init__(
        self, get_model: Callable[[], Llama], num_blocks: int, *, populates_cache: bool = False
    ) -> None:
        self._get_model = get_model
        self._cache = cache = get_model().build_cache(num_blocks)
        if populates_cache:
            # Otherwise a server's memory grows for hours, page by page. In a thread,
            # since it takes a tenth of a second.
            Thread(
                target=lambda: populate_memory(cache.ctypes.data, cache.nbytes),
                name="tiny-cache",
                daemon=True,
            ).start()

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
