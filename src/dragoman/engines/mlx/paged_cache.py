"""A paged KV cache with the interface of mlx-lm's caches. Independent of requests.

A model of mlx-lm passes each layer's new keys and values to its cache and attends to what it returns: here those of
several sequences, gathered from one pool and padded. The cache's mask excludes padding and later tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..batching import BLOCK_SIZE, Chunk
from .backend import Array, mx


class ChunkGroup:
    """Chunks of equal length, computed as one batch.

    ids: [rows, tokens].
    offset: [rows] positions of their first tokens.
    write_slots: of the pool, for new keys and values.
    read_slots: [rows, keys] of the pool; key k of a row has position k.
    """

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        width = -(-max(chunk.end for chunk in chunks) // BLOCK_SIZE)
        # Block 0 is never allocated: padding of the table points to it and is masked.
        tables = mx.array([(chunk.sequence.blocks + [0] * width)[:width] for chunk in chunks])
        spans = [range(chunk.begin, chunk.end) for chunk in chunks]
        self.ids = mx.array([chunk.sequence.tokens[chunk.begin : chunk.end] for chunk in chunks])
        self.offset = mx.array([chunk.begin for chunk in chunks])
        self.write_slots = mx.array(
            [chunk.sequence.find_slot(position) for chunk, span in zip(chunks, spans, strict=True) for position in span]
        )
        self.read_slots = (tables[:, :, None] * BLOCK_SIZE + mx.arange(BLOCK_SIZE)).reshape(len(chunks), -1)
        self._positions = mx.array([list(span) for span in spans])

    def build_mask(self, window: int | None) -> Array:
        """Build the mask [rows, 1, tokens, keys], True where a token sees a key."""
        keys = mx.arange(self.read_slots.shape[1])
        tokens = self._positions[:, :, None]
        visible = keys <= tokens
        if window is not None:
            visible = visible & (keys > tokens - window)
        return visible[:, None]


class PagedCache:
    """The keys and values of one layer, [slots, heads, width] each, allocated on first use."""

    def __init__(self, num_blocks: int) -> None:
        self._num_slots = num_blocks * BLOCK_SIZE
        self._group: ChunkGroup | None = None
        self.keys: Array = None
        self.values: Array = None

    def set_group(self, group: ChunkGroup) -> None:
        self._group = group

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Zero reused blocks: stale NaNs could affect a sequence, since 0 * NaN is NaN."""
        if self.keys is not None and blocks:
            slots = mx.array([block * BLOCK_SIZE + offset for block in blocks for offset in range(BLOCK_SIZE)])
            self.keys[slots] = 0
            self.values[slots] = 0

    def read_block(self, block: int) -> Iterator[tuple[str, Array]]:
        """Yield the keys and values of a block, by name."""
        span = slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
        yield "keys", self.keys[span]
        yield "values", self.values[span]

    def restore(self, block: int, keys: Array, values: Array) -> None:
        """keys, values: [BLOCK_SIZE, heads, width]."""
        self._allocate(keys, values)
        span = slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
        self.keys[span] = keys
        self.values[span] = values

    def _allocate(self, keys: Array, values: Array) -> None:
        """Allocate keys and values with this dtype and these last two dimensions."""
        if self.keys is None:
            self.keys = mx.zeros((self._num_slots, *keys.shape[-2:]), keys.dtype)
            self.values = mx.zeros((self._num_slots, *values.shape[-2:]), values.dtype)

    @property
    def bytes_per_token(self) -> int:
        return 0 if self.keys is None else int(self.keys[0].nbytes + self.values[0].nbytes)

    @property
    def offset(self) -> Array:
        """In the library's words: where rotary positions begin."""
        assert self._group is not None
        return self._group.offset

    def make_mask(self, count: int, *, return_array: bool = False, window_size: int | None = None) -> Array:
        """In the library's words."""
        del count, return_array
        assert self._group is not None
        return self._group.build_mask(window_size)

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """In the library's words. keys, values: [rows, heads, tokens, width]; returns the same with all of the past."""
        assert self._group is not None
        group, keys, values = self._group, keys.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3)
        self._allocate(keys, values)
        self.keys[group.write_slots] = keys.reshape(-1, *self.keys.shape[1:])
        self.values[group.write_slots] = values.reshape(-1, *self.values.shape[1:])
        return self.keys[group.read_slots].transpose(0, 2, 1, 3), self.values[group.read_slots].transpose(0, 2, 1, 3)
