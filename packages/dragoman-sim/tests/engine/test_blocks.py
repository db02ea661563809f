from __future__ import annotations

import pytest

from dragoman_sim.engine.block_hashes import CacheKeys, TokenContents, TracedContents
from dragoman_sim.engine.block_pool import (
    AllBlocksCleared,
    BlockCached,
    BlockRemoved,
    SimulatedBlockPool,
)


def test_allocate_excludes_null_block() -> None:
    assert sorted(SimulatedBlockPool(4).allocate(3)) == [1, 2, 3]


def test_allocate_more_than_free_raises() -> None:
    with pytest.raises(ValueError, match="3 are free"):
        SimulatedBlockPool(4).allocate(4)


def test_find_returns_free_block_until_reallocated() -> None:
    pool = SimulatedBlockPool(3)
    (block,) = pool.allocate(1)
    pool.cache(block, b"a")
    pool.release([block])
    assert pool.find([b"a"]) == [block]
    pool.allocate(2)
    assert pool.find([b"a"]) == []


def test_allocate_evicts_sequence_end_first() -> None:
    pool = SimulatedBlockPool(4)
    blocks = pool.allocate(3)
    for block, name in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.cache(block, name)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.find([b"a", b"b", b"c"]) == blocks[:2]


def test_allocate_prefers_uncached_blocks() -> None:
    pool = SimulatedBlockPool(6)
    cached, *others = pool.allocate(4)
    pool.cache(cached, b"a")
    pool.release([cached, *others])
    assert pool.allocate(5) == [4, 3, 2, 5, cached], (
        "LIFO: the last freed block is still in the GPU's caches"
    )


def test_find_stops_at_first_missing_block() -> None:
    pool = SimulatedBlockPool(4)
    first, second = pool.allocate(2)
    pool.cache(first, b"a")
    pool.cache(second, b"c")
    assert pool.find([b"a", b"b", b"c"]) == [first]


def test_release_frees_shared_block_after_last_holder() -> None:
    pool = SimulatedBlockPool(2)
    (block,) = pool.allocate(1)
    pool.acquire([block])
    pool.release([block])
    assert pool.num_free == 0
    pool.release([block])
    assert (pool.num_free, pool.usage) == (1, 0.0)
    with pytest.raises(ValueError, match="not held"):
        pool.release([block])


def test_find_returns_duplicate_after_first_is_reused() -> None:
    pool = SimulatedBlockPool(3)
    first, second = pool.allocate(2)
    pool.cache(first, b"a")
    pool.cache(second, b"a")
    assert pool.find([b"a"]) == [first]
    pool.release([first])
    assert pool.allocate(1) == [first]
    assert pool.find([b"a"]) == [second]


def test_take_events_reports_cached_removed_and_cleared() -> None:
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


def test_block_hashes_depend_on_prefix_and_root() -> None:
    one = TokenContents(2, [1, 2, 3, 4, 5, 6])
    other = TokenContents(2, [1, 2, 3, 9, 5, 6])
    assert one.get_block_hash(0) == other.get_block_hash(0)
    assert one.get_block_hash(1) != other.get_block_hash(1)
    assert one.get_block_hash(2) != other.get_block_hash(2), (
        "the tokens are the same, but not their prefix"
    )
    keys = [
        CacheKeys("lora", "/path", "salt"),
        CacheKeys("lora", "/path"),
        CacheKeys("lora", "/other", "salt"),
        CacheKeys(salt="salt"),
        CacheKeys(private="salt"),
        CacheKeys("lora/", "path", "salt"),
    ]
    hashes = [TokenContents(2, [1, 2], each).get_block_hash(0) for each in keys]
    assert len({one.get_block_hash(0), *hashes}) == len(keys) + 1


def test_get_block_hash_of_partial_block_raises() -> None:
    contents = TokenContents(2, [1, 2, 3])
    with pytest.raises(ValueError, match="not full"):
        contents.get_block_hash(1)
    contents.tokens.append(4)
    assert contents.get_block_hash(1) == TokenContents(2, [1, 2, 3, 4]).get_block_hash(1)


@pytest.mark.parametrize("block_size", [4, 8, 16, 32])
def test_traced_contents_share_prefix_at_any_block_size(block_size: int) -> None:
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


@pytest.mark.parametrize("block_size", [1, 7, 16, 512, 784])
@pytest.mark.parametrize("traced_size", [16, 100, 512])
def test_iterated_block_hashes_equal_single_ones(block_size: int, traced_size: int) -> None:
    hashes = [b"first", b"second", b"third"]
    contents = TracedContents(
        "id", hashes, block_size=block_size, traced_block_size=traced_size, root=b"root"
    )
    count = 4 * traced_size // block_size + 3
    singles = [contents.get_block_hash(index) for index in range(count)]
    assert len(set(singles)) == count
    for begin in {0, 1, count // 2, count - 1, count}:
        assert list(contents.iterate_block_hashes(begin, count)) == singles[begin:]
        assert list(contents.iterate_block_hashes(0, begin)) == singles[:begin]
    for index, block_hash in enumerate(singles):
        # The hash names the traced block in which the block ends, if there is one.
        traced, offset = divmod((index + 1) * block_size - 1, traced_size)
        named = b"root" + hashes[traced] if traced < len(hashes) else b"root/id/"
        assert block_hash.startswith(named)
        assert (block_hash == named) == (traced < len(hashes) and offset + 1 == traced_size)


def test_cached_run_equals_blocks_cached_one_by_one() -> None:
    names = [b"a", b"b", b"a", b"c"]
    pools = [SimulatedBlockPool(8, record=True) for _ in range(2)]
    blocks = [pool.allocate(4) for pool in pools]
    pools[0].cache_run(blocks[0], names)
    for block, block_hash in zip(blocks[1], names, strict=True):
        pools[1].cache(block, block_hash)
    assert blocks[0] == blocks[1]
    assert pools[0].list_cached_blocks() == pools[1].list_cached_blocks()
    assert pools[0].take_events() == pools[1].take_events()
    with pytest.raises(ValueError, match="zip"):
        pools[0].cache_run(blocks[0], names[:3])
