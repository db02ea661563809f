"""The forward pass: compared with a plain reference, and bit-identical for all
chunkings of a prompt.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.engines.batching import BLOCK_SIZE
from dragoman.engines.tiny.engine import compute_mean_state
from dragoman.engines.tiny.llama import Llama, TokenBatch
from dragoman.engines.tiny.paged_attention import CHUNK, CHUNK_BLOCKS, count_chunks
from dragoman.engines.tiny.rope import Rope, compute_interleaved_order

from .models import Shape, make_model

Floats = NDArray[np.float32]

RNG = np.random.default_rng(3)
SHAPES = [
    Shape(),
    Shape(layers=1, kv_heads=4, tied=False),
    Shape(heads=8, kv_heads=1, head_dim=4),
    Shape(heads=3, kv_heads=1, head_dim=16),
    Shape(rope={"rope_type": "linear", "rope_theta": 5e3, "factor": 2.0}),
    Shape(
        rope={
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    ),
]


def logits(model: Llama, ids: list[int], cuts: list[int], seed: int = 0) -> Floats:
    """Compute the logits of every token in chunks of these lengths, in blocks scattered
    over the pool.
    """
    blocks = 1 + np.random.default_rng(seed).permutation(-(-len(ids) // BLOCK_SIZE) + 8)
    cache = model.build_cache(len(blocks) + 1)
    rows: list[Floats] = []
    begin = 0
    for count in cuts:
        end = begin + count
        positions = np.arange(begin, end)
        table = np.zeros(count_chunks(end) * CHUNK_BLOCKS, np.int64)
        used = -(-end // BLOCK_SIZE)
        table[:used] = blocks[:used]
        slots = blocks[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        one = (model.attention.build_single(0, positions, table[None]),) if count == 1 else ()
        more = (model.attention.build_span(0, count, begin, table),) if count > 1 else ()
        batch = TokenBatch(
            ids=np.array(ids[begin:end]), positions=positions, slots=slots, singles=one, spans=more
        )
        rows.append(model.compute_logits(model.forward(batch, cache)[:count]))
        begin = end
    return np.concatenate(rows)


def plain(model: Llama, ids: list[int]) -> Floats:
    """Compute the logits in one chunk."""
    return logits(model, ids, [len(ids)])


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_chunked_prefill_is_bit_identical(tmp_path: Path, shape: Shape) -> None:
    model = make_model(tmp_path, shape)
    ids = RNG.integers(0, shape.vocab, 300).tolist()
    full = plain(model, ids)
    for cuts in ([1] * 300, [7] * 42 + [6], [299, 1], [1, 15, 16, 17, 128, 123]):
        assert np.array_equal(logits(model, ids, cuts, seed=len(cuts)), full)


def test_bundled_model_chunked_prefill_is_bit_identical(bundled_model: Llama) -> None:
    ids = RNG.integers(0, bundled_model.config.vocab, 420).tolist()
    full = plain(bundled_model, ids)
    for cuts in ([400] + [1] * 20, [64] * 6 + [36], [1] * 30 + [390]):
        assert np.array_equal(logits(bundled_model, ids, cuts, seed=len(cuts)), full)


def test_attention_is_causal(small_model: Llama) -> None:
    ids = RNG.integers(0, 96, 200).tolist()
    full = plain(small_model, ids)
    changed = plain(small_model, [*ids[:150], (ids[150] + 1) % 96, *ids[151:]])
    assert np.array_equal(changed[:150], full[:150])
    assert (changed[150:] != full[150:]).any(axis=1).all()


def test_batched_decode_of_mixed_lengths_matches_prefill(small_model: Llama) -> None:
    """Rows of one batch, with keys in one to three chunks, equal rows of a prompt
    computed at once.
    """
    ids = RNG.integers(0, 96, 340).tolist()
    full = plain(small_model, ids)
    cache = small_model.build_cache(40)
    table = np.arange(1, count_chunks(340) * CHUNK_BLOCKS + 1)
    positions = np.arange(340)
    span = small_model.attention.build_span(0, 340, 0, table)
    slots = table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    small_model.forward(
        TokenBatch(ids=np.array(ids), positions=positions, slots=slots, singles=(), spans=(span,)),
        cache,
    )
    some = np.array([0, 1, 77, CHUNK - 1, CHUNK, 200, 255, 256, 339])
    single = small_model.attention.build_single(0, some, np.repeat(table[None], len(some), axis=0))
    batch = TokenBatch(
        ids=np.array(ids)[some], positions=some, slots=slots[some], singles=(single,), spans=()
    )
    assert np.array_equal(
        small_model.compute_logits(small_model.forward(batch, cache)[: len(some)]), full[some]
    )


def test_count_chunks_pads_at_most_by_half() -> None:
    counts = [count_chunks(length) for length in range(1, 40 * CHUNK)]
    assert counts == sorted(counts)
    assert all(
        -(-length // CHUNK) <= count <= 1.5 * -(-length // CHUNK)
        for length, count in enumerate(counts, 1)
    )
    assert len(set(counts)) <= 12


def test_rope_rotates_pairs_by_position(small_model: Llama) -> None:
    rope = Rope(small_model.config.rope, 8)
    turns = rope.get_rotations(np.array([0, 1, 700, 5000]))
    assert turns.shape == (4, 1, 4)
    assert np.allclose(np.angle(turns[1, 0]), [1, 0.1, 0.01, 0.001])
    assert np.allclose(np.angle(turns[3, 0, 3]), 5.0 - 2 * np.pi, atol=1e-5)
    assert compute_interleaved_order(8).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_mean_state_is_reproducible_and_order_dependent(small_model: Llama) -> None:
    ids = tuple(RNG.integers(0, 96, 700).tolist())
    vector = compute_mean_state(small_model, ids)
    assert vector.shape == (32,)
    assert np.array_equal(vector, compute_mean_state(small_model, ids))
    assert not np.allclose(vector, compute_mean_state(small_model, ids[::-1]))
