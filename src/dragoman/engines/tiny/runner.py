"""A Llama over a pool of blocks: puts the chunks of a step into the order that its attention wants, and runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..arrays.weights import Tensors
from ..batching import BLOCK_SIZE, Chunk
from .attention import CHUNK_BLOCKS, Single, chunks_of
from .model import Batch, Llama

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class PagedLlama:
    """A Llama as the engine wants it: a `batching.Model`."""

    def __init__(self, model: Llama) -> None:
        self._model = model

    @property
    def vocab(self) -> int:
        return self._model.config.vocab

    @property
    def max_positions(self) -> int:
        return self._model.config.max_positions

    def now(self) -> Llama:
        """With the weights that it has at present."""
        return self._model

    def runner(self, num_blocks: int) -> LlamaRunner:
        return LlamaRunner(self.now, num_blocks)

    def renew(self, tensors: Tensors) -> Callable[[], None]:
        model = self._model.renewed(tensors)

        def put() -> None:
            self._model = model

        return put

    def discarding(self) -> None:
        """It keeps them."""


class LlamaRunner:
    """As `batching.Runner`."""

    def __init__(self, now: Callable[[], Llama], num_blocks: int) -> None:
        self._now = now
        self._cache = now().new_cache(num_blocks)

    def close(self) -> None:
        self._cache = self._cache[:, :0]

    def forward(self, chunks: Sequence[Chunk]) -> LlamaStates:
        model = self._now()
        self._wipe(chunks)
        order, batch = _batch(model, chunks)
        rows = model.forward(batch, self._cache)
        starts = [0] * len(chunks)
        row = 0
        for place in order:
            starts[place] = row
            row += chunks[place].num_tokens
        return LlamaStates(model, rows, starts, [chunk.num_tokens for chunk in chunks])

    def save(self, block: int) -> bytes:
        return self._cache[:, block].tobytes()

    def restore(self, block: int, contents: bytes) -> None:
        self._cache[:, block] = np.frombuffer(contents, np.float32).reshape(len(self._cache), -1)

    def _wipe(self, chunks: Sequence[Chunk]) -> None:
        """Zero the blocks that are new to their sequences: what is masked counts for nothing as a number, but
        0 * NaN is NaN, and a sequence must not suffer from what its predecessor left behind."""
        new = [block for chunk in chunks for block in chunk.sequence.blocks[-(-chunk.begin // BLOCK_SIZE) :]]
        if new:
            self._cache[:, new] = 0


class LlamaStates:
    """The last hidden states of a step. starts, lengths: of each chunk's rows, by its place in the step."""

    def __init__(self, model: Llama, rows: Floats, starts: list[int], lengths: list[int]) -> None:
        self._model, self._rows, self._starts, self._lengths = model, rows, starts, lengths

    def last(self, places: Sequence[int]) -> Floats:
        return self._model.logits(self._rows[[self._starts[place] + self._lengths[place] - 1 for place in places]])

    def span(self, place: int, begin: int, end: int) -> Floats:
        start = self._starts[place]
        return self._model.logits(self._rows[start + begin : start + end])


def _batch(model: Llama, chunks: Sequence[Chunk]) -> tuple[list[int], Batch]:
    """The places of the chunks in the order of their rows: single tokens first, those of about the same length
    together."""
    groups: dict[int, list[int]] = {}
    for place, chunk in enumerate(chunks):
        if chunk.num_tokens == 1:
            groups.setdefault(chunks_of(chunk.end), []).append(place)
    singles: list[Single] = []
    order: list[int] = []
    for width, group in groups.items():
        positions = np.array([chunks[place].begin for place in group])
        tables = np.zeros((len(group), width * CHUNK_BLOCKS), np.int64)
        for table, place in zip(tables, group, strict=True):
            held = chunks[place].sequence.blocks
            table[: len(held)] = held
        singles.append(model.attention.single(len(order), positions, tables))
        order += group
    longer = [place for place, chunk in enumerate(chunks) if chunk.num_tokens > 1]
    starts = np.cumsum([len(order), *(chunks[place].num_tokens for place in longer)])[:-1].tolist()
    spans = tuple(
        model.attention.span(start, chunks[place].num_tokens, chunks[place].begin, _table(chunks[place]))
        for start, place in zip(starts, longer, strict=True)
    )
    order += longer
    tokens = [(chunks[place].sequence, at) for place in order for at in range(chunks[place].begin, chunks[place].end)]
    return order, Batch(
        ids=np.array([sequence.tokens[at] for sequence, at in tokens]),
        positions=np.array([at for _, at in tokens]),
        slots=np.array([sequence.slot(at) for sequence, at in tokens]),
        singles=tuple(singles),
        spans=spans,
    )


def _table(chunk: Chunk) -> Ints:
    table = np.zeros(chunks_of(chunk.end) * CHUNK_BLOCKS, np.int64)
    table[: len(chunk.sequence.blocks)] = chunk.sequence.blocks
    return table
