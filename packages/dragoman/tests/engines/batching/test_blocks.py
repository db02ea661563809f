"""Invariants of the block pool under any sequence of operations."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from dragoman.core.prompt_images import PromptImage
from dragoman.engines.batching.block_hashes import encode_image_key, hash_block, hash_root
from dragoman.engines.batching.block_pool import NULL_BLOCK, BlockPool

SIZE = 12


def name(number: int) -> bytes:
    return hash_block(b"", [number])


class Pool(RuleBasedStateMachine):
    """A pool beside a simple model of its contents."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(SIZE + 1)
        self.users: list[list[int]] = []
        self.names: dict[int, bytes] = {}
        """What each block is cached under."""
        self.queue: list[int] = []
        """Cached blocks that nobody holds, the one to go first in front."""

    def held(self, block: int) -> int:
        return sum(user.count(block) for user in self.users)

    @rule(count=st.integers(1, 4))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_free:
            return
        plain = self.pool.num_free - len(self.queue)
        taken = self.pool.allocate(count)
        assert not any(self.held(block) for block in taken), "a block in use was allocated"
        evicted = [block for block in taken if block in self.names]
        assert evicted == self.queue[: max(0, count - plain)], (
            "the evicted blocks were not the least recently used"
        )
        for block in evicted:
            self.queue.remove(block)
            del self.names[block]
        self.users.append(taken)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        user = self.users.pop(data.draw(st.integers(0, len(self.users) - 1)))
        self.pool.release(user)
        self.queue += [
            block for block in reversed(user) if block in self.names and not self.held(block)
        ]

    @precondition(lambda self: self.users)
    @rule(data=st.data(), number=st.integers(0, 8))
    def cache(self, data: st.DataObject, number: int) -> None:
        block = data.draw(st.sampled_from([block for user in self.users for block in user]))
        self.pool.cache(block, name(number))
        if block not in self.names and name(number) not in self.names.values():
            self.names[block] = name(number)

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.names)))
        assert self.pool.find([self.names[block]]) == [block]
        assert self.pool.count_free([block]) == (not self.held(block))
        self.pool.acquire([block])
        if block in self.queue:
            self.queue.remove(block)
        self.users.append([block])

    @rule()
    def clear(self) -> None:
        self.pool.reset()
        self.users = []
        self.names = {}
        self.queue = []

    @invariant()
    def every_block_is_either_free_or_held(self) -> None:
        held = {block for user in self.users for block in user}
        assert NULL_BLOCK not in held
        assert (
            self.pool.num_free
            == SIZE - len(held)
            == SIZE - self.pool.size + self.pool.count_free(range(1, SIZE + 1))
        )
        assert self.pool.count_free(held) == 0

    @invariant()
    def what_is_cached_is_found_and_nothing_else(self) -> None:
        cached = {name: block for block, name in self.names.items()}
        for number in range(9):
            block = cached.get(name(number))
            assert self.pool.find([name(number)]) == ([] if block is None else [block])


TestPool = Pool.TestCase


def test_block_pool_finds_prefix_up_to_first_gap() -> None:
    pool = BlockPool(8)
    blocks = pool.allocate(3)
    for block, number in zip(blocks, (0, 1, 3), strict=True):
        pool.cache(block, name(number))
    assert pool.find(name(number) for number in range(4)) == blocks[:2]


def test_block_pool_evicts_sequence_tail_before_head() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    for number, block in enumerate(blocks):
        pool.cache(block, name(number))
    pool.release(blocks)
    assert pool.allocate(1) == blocks[2:]
    assert pool.find([name(0), name(1)]) == blocks[:2]


def test_block_pool_allocate_beyond_capacity_raises_key_error() -> None:
    with pytest.raises(KeyError):
        BlockPool(3).allocate(3)


def test_block_hash_covers_tokens_prefix_salt_and_adapter() -> None:
    chain = hash_block(hash_block(hash_root(""), [1, 2]), [3, 4])
    assert chain == hash_block(hash_block(hash_root(""), [1, 2]), [3, 4])
    others = [
        hash_block(hash_block(hash_root("salt"), [1, 2]), [3, 4]),
        hash_block(hash_block(hash_root(""), [1, 5]), [3, 4]),
        hash_block(hash_block(hash_root(""), [1, 2]), [4, 3]),
        hash_block(hash_root(""), [3, 4]),
        hash_block(hash_block(hash_root("", adapter=1), [1, 2]), [3, 4]),
        hash_block(hash_block(hash_root("", adapter=2), [1, 2]), [3, 4]),
    ]
    assert len({chain, *others}) == 7
    assert hash_root("\ud800") != hash_root("")


def test_block_hash_covers_images() -> None:
    def named(*images: PromptImage, begin: int = 16, end: int = 32) -> bytes:
        return hash_block(hash_root(""), [7] * 16, encode_image_key(images, begin, end))

    one = PromptImage(20, 28, b"1" * 16, None)
    other = PromptImage(20, 28, b"2" * 16, None)
    before = PromptImage(0, 16, b"3" * 16, None)
    behind = PromptImage(32, 40, b"3" * 16, None)
    assert named(one) == named(one, before, behind)
    assert named(one, begin=16) != named(replace(one, begin=21), begin=16)
    assert named() == named(before, behind) == hash_block(hash_root(""), [7] * 16)
    assert (
        len(
            {
                named(),
                named(one),
                named(other),
                named(replace(one, end=24), replace(other, begin=24)),
            }
        )
        == 4
    )
