"""The pool of key-value blocks and the prefix cache over it, by vLLM's rules. Pure: it knows block numbers only.

A full block is known by the hash of its tokens and of all before them. A block that nobody uses any more
keeps its contents and its hash until it is needed for something else; the one unused for longest goes first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from ...core.vision import PromptImage

BLOCK_SIZE = 16
"""Tokens in a block of the pool."""

NULL_BLOCK = 0
"""Pads block tables; never allocated, so that what is read from it is zeros."""


def hash_block(parent: bytes, tokens: Sequence[int], image_key: bytes = b"") -> bytes:
    """The name of a full block. A cryptographic hash: a collision would show one client another's prompt.

    shown: see `shown_in`.
    """
    return blake2b(array("q", tokens).tobytes() + image_key, digest_size=16, key=parent).digest()


def encode_image_key(images: Iterable[PromptImage], begin: int, end: int) -> bytes:
    """What the ids from begin to end show, beside what they are: all images have the same ids."""
    return b"".join(
        image.digest + (begin - image.begin).to_bytes(8, "big", signed=True)
        for image in images
        if image.begin < end and begin < image.end
    )


def hash_root(cache_salt: str, adapter: int = 0) -> bytes:
    """The parent of a first block: blocks are shared only among equal salts, computed by equal weights.

    adapter: the number of what was added to the model's own; 0 for nothing.
    """
    salt = cache_salt.encode("utf-8", "surrogatepass")
    return blake2b(salt, digest_size=16, key=adapter.to_bytes(8, "big")).digest()


def hash_prefix(tokens: Sequence[int], cache_salt: str) -> Iterator[bytes]:
    """The names of the blocks that can be found for a prompt: the last token is computed in any case."""
    parent = hash_root(cache_salt)
    for begin in range(0, (len(tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE, BLOCK_SIZE):
        parent = hash_block(parent, tokens[begin : begin + BLOCK_SIZE])
        yield parent


class BlockPool:
    """`size` blocks, of which all but NULL_BLOCK can be had.

    A block is either held (by as many users as its count says) or free; a free one may still be cached.
    """

    def __init__(self, size: int) -> None:
        self._ref_counts = [0] * size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, size))
        self._block_by_hash: dict[bytes, int] = {}
        self._hash_by_block: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be had, cached ones included."""
        return len(self._free)

    @property
    def size(self) -> int:
        """Blocks that could ever be had at once."""
        return len(self._ref_counts) - 1

    def allocate(self, count: int) -> list[int]:
        """Hold so many blocks, forgetting what was cached in them. There must be as many free."""
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
            evicted = self._hash_by_block.pop(block, None)
            if evicted is not None:
                del self._block_by_hash[evicted]
        return blocks

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The cached blocks of the longest prefix of these hashes. They are not held yet."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._block_by_hash.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def find_block(self, block_hash: bytes) -> int | None:
        """Where the block of this hash is cached."""
        return self._block_by_hash.get(block_hash)

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are free: holding them takes as many from `free`."""
        return sum(block in self._free for block in blocks)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Use cached blocks, together with whoever else does."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Stop using the blocks of a sequence, given in its order.

        The last ones are reused first, since a prefix is worth more than what follows it; one that was never
        cached is reused before all others.
        """
        for block in reversed(blocks):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
                if block not in self._hash_by_block:
                    self._free.move_to_end(block, last=False)

    def cache(self, block: int, block_hash: bytes) -> None:
        """Let a held, full block be found under its hash. If another has the same contents that one stays."""
        if block_hash not in self._block_by_hash and block not in self._hash_by_block:
            self._block_by_hash[block_hash] = block
            self._hash_by_block[block] = block_hash

    def clear_cache(self) -> None:
        """Nothing that was cached is found any more. What is held stays held."""
        self._block_by_hash.clear()
        self._hash_by_block.clear()

    def reset(self) -> None:
        """As it was at the beginning: nothing held, nothing cached."""
        self._ref_counts = [0] * len(self._ref_counts)
        self._free = OrderedDict.fromkeys(range(1, len(self._ref_counts)))
        self._block_by_hash.clear()
        self._hash_by_block.clear()
