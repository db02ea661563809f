"""Attention over a paged KV cache, bitwise equal for one query or many.

The keys of a sequence are split into chunks of CHUNK from its beginning. Within a chunk
sums have a fixed shape; over the chunks they run in order. Masked keys add exact zeros,
so neither padding nor the number of chunks changes a result.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from msgspec import Struct

from ..batch_invariant_matmul import BlockSizes, multiply, round_up
from ..batching import BLOCK_SIZE
from .array_types import Floats, Ints
from .llama_config import LlamaConfig

CHUNK = 128
"""Number of keys that one matrix product sums over."""


CHUNK_BLOCKS = CHUNK // BLOCK_SIZE


_MAX_SCORES = 1 << 18
"""Limit of the scores in memory while a prompt is computed: 1 MiB of float32."""


class SingleQueries(Struct, frozen=True):
    """Rows start to stop of a batch: one query each, of sequences of similar length.

    tables: [rows, blocks], numbers of the sequences' blocks in the cache.
    mask: [rows, 1, chunks, 1, CHUNK], -inf at masked keys.
    """

    start: int
    stop: int
    tables: Ints
    mask: Floats


class SpanPart(Struct, frozen=True):
    """Queries begin to end of a span, which see `chunks` chunks of keys.

    mask: [last chunks, rows, CHUNK], -inf at masked keys; all chunks before these are
        visible.
    """

    begin: int
    end: int
    chunks: int
    mask: Floats


class QuerySpan(Struct, frozen=True):
    """Rows start to stop of a batch: consecutive queries of one sequence.

    table: [blocks], numbers of the sequence's blocks in the cache.
    """

    start: int
    stop: int
    table: Ints
    parts: tuple[SpanPart, ...]


def count_chunks(length: int) -> int:
    """Return the number of chunks for a length, rounded up to 2**n or 3 * 2**n.

    Few different numbers let sequences of similar length form groups; at most half of a
    group is padding.
    """
    chunks = -(-length // CHUNK)
    power = 1 << (chunks - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= chunks else power


class Attention:
    """The attention of one model. When it is built, it tests which BLAS calls compute
    all rows independently.
    """

    def __init__(self, config: LlamaConfig, block_sizes: BlockSizes) -> None:
        self._kv_heads = config.kv_heads
        self._group = config.group_size
        self._head_dim = config.head_dim
        # Query heads that share a key head are rows of one product, padded so that BLAS
        # uses the same kernel in all calls.
        self._row_multiple = max(4, 1 << (config.group_size - 1).bit_length())
        sample = np.random.default_rng(1).standard_normal(
            (CHUNK, 2 * self._kv_heads, self._head_dim), np.float32
        )
        self._score_block = block_sizes.find_block_size(sample[:, 0].T, self._row_multiple)
        self._value_block = block_sizes.find_block_size(
            sample[:, self._kv_heads], self._row_multiple
        )

    def build_single(self, start: int, positions: Ints, tables: Ints) -> SingleQueries:
        """Build single queries. positions: one per query. tables: zero-padded to a
        whole number of chunks.
        """
        width: int = tables.shape[1] * BLOCK_SIZE
        keys = np.arange(width).reshape(1, 1, -1, 1, CHUNK)
        mask = _build_mask(keys, positions[:, None, None, None, None])
        return SingleQueries(start=start, stop=start + len(positions), tables=tables, mask=mask)

    def build_span(self, start: int, count: int, position: int, table: Ints) -> QuerySpan:
        """Build a span of queries. position: that of the first. table: zero-padded to a
        whole number of chunks.
        """
        keys = len(table) * BLOCK_SIZE
        # Parts keep the scores in the processor's cache, regardless of the length of
        # the prompt.
        step = max(8, _MAX_SCORES // (self._kv_heads * self._group * keys))
        bounds = [*range(0, count, step), count]
        parts: list[SpanPart] = []
        for begin, end in pairwise(bounds):
            # Later keys are left out entirely; only the chunks from the first query's
            # on need a mask.
            chunks = -(-(position + end) // CHUNK)
            first = (position + begin) // CHUNK
            masked_keys = np.arange(first * CHUNK, chunks * CHUNK).reshape(-1, 1, CHUNK)
            rows = round_up((end - begin) * self._group, self._row_multiple)
            queries = (position + begin + np.arange(rows) // self._group)[:, None]
            parts.append(
                SpanPart(
                    begin=begin, end=end, chunks=chunks, mask=_build_mask(masked_keys, queries)
                )
            )
        return QuerySpan(start=start, stop=start + count, table=table, parts=tuple(parts))

    def attend_single(self, queries: Floats, single: SingleQueries, cache: Floats) -> Floats:
        """Compute attention for single queries, [rows, heads * head_dim].

        queries: [rows, heads * head_dim], scaled.
        cache: [blocks, BLOCK_SIZE * kv_width], that of this layer.
        """
        rows = len(queries)
        kv = cache.take(single.tables, axis=0).reshape(
            rows, -1, CHUNK, 2 * self._kv_heads, self._head_dim
        )
        keys = kv[:, :, :, : self._kv_heads].transpose(0, 3, 1, 4, 2)
        values = kv[:, :, :, self._kv_heads :].transpose(0, 3, 1, 2, 4)
        padded = np.zeros((rows, self._kv_heads, 1, self._row_multiple, self._head_dim), np.float32)
        padded[:, :, 0, : self._group] = queries.reshape(
            rows, self._kv_heads, self._group, self._head_dim
        )
        scores = multiply(padded, keys, self._score_block)
        scores += single.mask
        mixed = self._mix_values(scores, values)
        return mixed[:, :, : self._group].reshape(rows, -1)

    def attend_span(self, queries: Floats, span: QuerySpan, cache: Floats) -> Floats:
        """Compute attention for the queries of one span; see `attend_single`."""
        kv = cache.take(span.table, axis=0).reshape(-1, CHUNK, 2 * self._kv_heads, self._head_dim)
        keys = kv[:, :, : self._kv_heads].transpose(2, 0, 3, 1)
        values = kv[:, :, self._kv_heads :].transpose(2, 0, 1, 3)
        outputs: list[Floats] = []
        for part in span.parts:
            count = part.end - part.begin
            chunks = part.chunks
            masked = len(part.mask)
            heads = queries[part.begin : part.end].reshape(
                count, self._kv_heads, self._group, self._head_dim
            )
            heads = heads.transpose(1, 0, 2, 3)
            padded = np.zeros((self._kv_heads, 1, part.mask.shape[1], self._head_dim), np.float32)
            padded[:, 0, : count * self._group] = heads.reshape(self._kv_heads, -1, self._head_dim)
            scores = multiply(padded, keys[:, :chunks], self._score_block)
            scores[:, chunks - masked :] += part.mask
            mixed = self._mix_values(scores, values[:, :chunks])[:, : count * self._group]
            outputs.append(
                mixed.reshape(self._kv_heads, count, -1).transpose(1, 0, 2).reshape(count, -1)
            )
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)

    def _mix_values(self, scores: Floats, values: Floats) -> Floats:
        """Compute the softmax over chunks and keys, times the values.

        scores: [..., chunks, rows, CHUNK], overwritten. values: [..., chunks, CHUNK,
            head_dim].
        """
        highest = scores.max(axis=-1, keepdims=True)
        if highest.shape[-3] > 1:
            highest = highest.max(axis=-3, keepdims=True)
        # The maximum is over all chunks, so the exponentials of every chunk have one
        # scale and can be added.
        scores -= highest
        np.exp(scores, out=scores)
        mixed = _sum_in_order(multiply(scores, values, self._value_block))
        mixed /= _sum_in_order(scores.sum(axis=-1, keepdims=True))
        return mixed


def _build_mask(keys: Ints, queries: Ints) -> Floats:
    """Build a mask: 0 for visible keys, -inf for later ones. keys, queries: positions,
    broadcast.
    """
    return np.where(np.greater(keys, queries), np.float32(-np.inf), np.float32(0))


def _sum_in_order(parts: Floats) -> Floats:
    """Sum over the chunks (axis -3) one after the other: np.sum's pairwise order
    depends on their number.
    """
    total = parts[..., 0, :, :]
    for chunk in range(1, parts.shape[-3]):
        total = total + parts[..., chunk, :, :]
    return total
