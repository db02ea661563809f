"""A text's vector from a Llama: the mean of its last hidden states. Knows nothing of the engine's pool."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .attention import CHUNK, CHUNK_BLOCKS, chunks_of
from .model import Batch, Llama

_AT_ONCE = 4 * CHUNK


def mean_state(model: Llama, ids: tuple[int, ...]) -> NDArray[np.float32]:
    """[hidden] numbers, not normalised. Keys and values are kept for the call alone."""
    table = np.arange(chunks_of(len(ids)) * CHUNK_BLOCKS)
    cache = model.new_cache(len(table))
    total = np.zeros(model.config.hidden, np.float32)
    for begin in range(0, len(ids), _AT_ONCE):
        end = min(begin + _AT_ONCE, len(ids))
        positions = np.arange(begin, end)
        span = model.attention.span(0, end - begin, begin, table[: chunks_of(end) * CHUNK_BLOCKS])
        batch = Batch(ids=np.array(ids[begin:end]), positions=positions, slots=positions, singles=(), spans=(span,))
        total += model.final(model.forward(batch, cache)[: end - begin]).sum(axis=0)
    return total / np.float32(len(ids))
