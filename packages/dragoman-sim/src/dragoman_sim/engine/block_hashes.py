"""Hashes of a sequence's blocks, from token ids or from a trace that contains only
hashes.

A hash covers a full block and everything before it, so two sequences share a prefix
exactly as far as their hashes agree. It also covers the images in the block. Everything
else that keys and values depend on (adapter, cache salt) is part of the root, the
parent of the first block.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, MutableSequence, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

from dragoman.core.prompt_images import PromptImage


class BlockContents(Protocol):
    """The block hashes of a sequence."""

    def get_block_hash(self, index: int) -> bytes:
        """Return the hash of the full block at this index of prompt and output. All of
        its tokens must be known.
        """
        ...


ImageKeys = tuple[tuple[str, int], ...]
"""The images in a block: the digest of each, and the offset of its first token from the
start of the block.
"""


def hash_block(parent: bytes, tokens: Sequence[int], images: ImageKeys = ()) -> bytes:
    """Hash a block cryptographically: a collision would give one client another
    client's cached prompt.
    """
    digest = blake2b(array("q", tokens).tobytes(), digest_size=16, key=parent)
    for image, offset in images:
        digest.update(f"{image} {offset};".encode())
    return digest.digest()


@lru_cache(maxsize=256)  # Nearly all requests have one of few salts and adapters.
def hash_root(*keys: str) -> bytes:
    """Hash the parent of a first block. keys: such as the adapter's name and the cache
    salt.
    """
    root = blake2b(digest_size=16)
    for key in keys:
        # JSON strings may contain unpaired surrogates. The length keeps ("ab", "c")
        # apart from ("a", "bc").
        encoded = key.encode("utf-8", "surrogatepass")
        root.update(len(encoded).to_bytes(8, "little") + encoded)
    return root.digest()


BlockHashed = Callable[[bytes, bytes | None, Sequence[int], ImageKeys], None]


class TokenContents:
    """Block contents from token ids. The caller appends sampled tokens to `tokens`
    before the next step is scheduled.

    on_hashed: called for every hashed block with its hash, its parent's (None for the
        first), its tokens and images.
    """

    __slots__ = ("_block_size", "_hashes", "_images", "_on_hashed", "tokens")

    def __init__(
        self,
        block_size: int,
        tokens: MutableSequence[int],
        root: bytes = b"",
        on_hashed: BlockHashed | None = None,
        images: Sequence[PromptImage] = (),
    ) -> None:
        self.tokens = tokens
        self._images = images
        self._on_hashed = on_hashed
        self._block_size = block_size
        # With the root in front, the entry at a block's index is its parent.
        self._hashes = [root]

    def get_block_hash(self, index: int) -> bytes:
        for block in range(len(self._hashes) - 1, index + 1):
            begin = block * self._block_size
            end = (block + 1) * self._block_size
            tokens = self.tokens[begin:end]
            if len(tokens) < self._block_size:
                raise ValueError(f"block {index} is not full yet")
            parent = self._hashes[-1]
            images: ImageKeys = ()
            if self._images:
                present = (
                    image for image in self._images if image.begin < end and image.end > begin
                )
                # As in vLLM's `extra_keys`: the placeholder ids of all images are the
                # same; only digests differ.
                images = tuple((image.digest.hex(), image.begin - begin) for image in present)
            self._hashes.append(hash_block(parent, tokens, images))
            if self._on_hashed is not None:
                # The root is not a block: as in vLLM's events, a first block has no
                # parent.
                self._on_hashed(self._hashes[-1], parent if block else None, tokens, images)
        return self._hashes[index + 1]


class TracedContents:
    """Block contents from a trace, which has hashes of blocks of `traced_block_size`
    tokens.

    Blocks beyond the trace's hashes are unique to the request.

    The engine's block size may differ from the trace's: the hash of a block is that of
    the traced block in which it ends, with the offset at which it ends.
    """

    def __init__(
        self,
        id: str,
        hashes: Sequence[bytes],
        *,
        block_size: int,
        traced_block_size: int,
        root: bytes = b"",
    ) -> None:
        self._request_root = root + b"/" + id.encode()
        self._hashes = hashes
        self._block_size = block_size
        self._traced_block_size = traced_block_size
        self._root = root

    def get_block_hash(self, index: int) -> bytes:
        end = (index + 1) * self._block_size
        traced = (end - 1) // self._traced_block_size
        if traced >= len(self._hashes):
            return self._request_root + b"/" + index.to_bytes(4, "little")
        offset = end - traced * self._traced_block_size
        hashed = self._root + self._hashes[traced]
        return (
            hashed
            if offset == self._traced_block_size
            else hashed + b"+" + offset.to_bytes(4, "little")
        )
