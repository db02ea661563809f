from __future__ import annotations

import pytest

from dragoman_sim.engine.blocks import (
    AllBlocksCleared,
    BlockCached,
    BlockRemoved,
    SimulatedBlockPool,
)
from dragoman_sim.engine.hashing import TokenContents, TracedContents, hash_root


def test_the_null_block_is_never_given_out() -> None:
    assert sorted(SimulatedBlockPool(4).allocate(3)) == [1, 2, 3]


def test_more_than_there_is_cannot_be_had() -> None:
    with pytest.raises(ValueError, match="3 are free"):
        SimulatedBlockPool(4).allocate(4)


def test_a_free_block_is_found_until_it_is_used_for_something_else() -> None:
    pool = SimulatedBlockPool(3)
    (block,) = pool.allocate(1)
    pool.cache(block, b"a")
    pool.release([block])
    assert pool.find([b"a"]) == [block]
    pool.allocate(2)
    assert pool.find([b"a"]) == []


def test_the_end_of_a_sequence_is_evicted_before_its_beginning() -> None:
    pool = SimulatedBlockPool(4)
    blocks = pool.allocate(3)
    for block, name in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.cache(block, name)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.find([b"a", b"b", b"c"]) == blocks[:2]


def test_uncached_blocks_are_reused_before_cached_ones() -> None:
    pool = SimulatedBlockPool(6)
    cached, *others = pool.allocate(4)
    pool.cache(cached, b"a")
    pool.release([cached, *others])
    assert pool.allocate(5) == [4, 3, 2, 5, cached], (
        "LIFO: the last freed block is still in the GPU's caches"
    )


def test_a_prefix_ends_where_a_block_is_missing() -> None:
    pool = SimulatedBlockPool(4)
    first, second = pool.allocate(2)
    pool.cache(first, b"a")
    pool.cache(second, b"c")
    assert pool.find([b"a", b"b", b"c"]) == [first]


def test_a_shared_block_is_free_when_the_last_one_lets_go() -> None:
    pool = SimulatedBlockPool(2)
    (block,) = pool.allocate(1)
    pool.acquire([block])
    pool.release([block])
    assert pool.num_free == 0
    pool.release([block])
    assert (pool.num_free, pool.usage) == (1, 0.0)
    with pytest.raises(ValueError, match="not held"):
        pool.release([block])


def test_of_two_blocks_with_the_same_contents_the_second_survives_the_first() -> None:
    pool = SimulatedBlockPool(3)
    first, second = pool.allocate(2)
    pool.cache(first, b"a")
    pool.cache(second, b"a")
    assert pool.find([b"a"]) == [first]
    pool.release([first])
    assert pool.allocate(1) == [first]
    assert pool.find([b"a"]) == [second]


def test_events_tell_what_can_be_found() -> None:
    pool = SimulatedBlockPool(2, record=True)
    (block,) = pool.allocate(1)
    pool.cache(block, b"a")
    assert not pool.reset(), "not while a block is held"
    pool.release([block])
    pool.allocate(1)
    pool.release([block])
    assert pool.reset()
    assert pool.take_events() == [
        BlockCached(block, b"a"),
        BlockRemoved(block, b"a"),
        AllBlocksCleared(),
    ]
    assert pool.take_events() == []
    assert SimulatedBlockPool(2).take_events() == []


def test_hashes_agree_exactly_as_far_as_tokens_and_root_do() -> None:
    one = TokenContents(2, [1, 2, 3, 4, 5, 6])
    other = TokenContents(2, [1, 2, 3, 9, 5, 6])
    assert one.get_block_hash(0) == other.get_block_hash(0)
    assert one.get_block_hash(1) != other.get_block_hash(1)
    assert one.get_block_hash(2) != other.get_block_hash(2), (
        "the tokens are the same, but not their prefix"
    )
    salted = TokenContents(2, [1, 2], hash_root("lora", "salt"))
    assert salted.get_block_hash(0) != one.get_block_hash(0)
    assert hash_root("ab", "c") != hash_root("a", "bc")


def test_a_block_has_no_hash_before_its_tokens_are_known() -> None:
    contents = TokenContents(2, [1, 2, 3])
    with pytest.raises(ValueError, match="not full"):
        contents.get_block_hash(1)
    contents.tokens.append(4)
    assert contents.get_block_hash(1) == TokenContents(2, [1, 2, 3, 4]).get_block_hash(1)


@pytest.mark.parametrize("block_size", [4, 8, 16, 32])
def test_a_trace_shares_prefixes_at_any_block_size(block_size: int) -> None:
    def contents(id: str, hashes: list[bytes]) -> TracedContents:
        return TracedContents(id, hashes, block_size=block_size, traced_block_size=16)

    one = contents("x", [b"a", b"b", b"c"])
    other = contents("y", [b"a", b"b", b"d"])
    names = [
        (one.get_block_hash(index), other.get_block_hash(index))
        for index in range(96 // block_size)
    ]
    shared = sum(ours == theirs for ours, theirs in names)
    assert shared == 32 // block_size
    assert len(set(names)) == len(names)
