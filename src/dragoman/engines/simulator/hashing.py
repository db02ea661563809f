"""What the blocks of a sequence hold, as hashes: from token ids, or from a trace that tells hashes only.

A hash names a full block and everything before it, so two sequences share a prefix exactly as far as their
hashes agree. Whatever else the keys and values depend on (LoRA, images, a salt) goes into the root.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, MutableSequence, Sequence
from hashlib import blake2b
from typing import Protocol


class BlockContents(Protocol):
    """A sequence's tokens, as far as the cache cares."""

    def get_block_hash(self, index: int) -> bytes:
        """The hash of the index-th full block of prompt and output, whose tokens are all known."""
        ...


def hash_block(parent: bytes, tokens: Sequence[int]) -> bytes:
    """A cryptographic hash: a collision would count one client's prompt as another's."""
    return blake2b(array("q", tokens).tobytes(), digest_size=16, key=parent).digest()


def hash_root(*keys: str) -> bytes:
    """The parent of a first block: name of the LoRA, cache salt, digests of images."""
    root = blake2b(digest_size=16)
    for key in keys:
        encoded = key.encode("utf-8", "surrogatepass")
        root.update(len(encoded).to_bytes(8, "little") + encoded)
    return root.digest()


BlockHashed = Callable[[bytes, bytes | None, Sequence[int]], None]


class TokenContents:
    """Real token ids. The caller appends to `tokens` what was sampled, before the next step is scheduled.

    noted: told of every block when it is hashed: its hash, that of the one before it (None for the first), its tokens.
    """

    __slots__ = ("_block_size", "_hashes", "_on_hashed", "tokens")

    def __init__(
        self, block_size: int, tokens: MutableSequence[int], root: bytes = b"", on_hashed: BlockHashed | None = None
    ) -> None:
        self.tokens = tokens
        self._on_hashed = on_hashed
        self._block_size = block_size
        self._hashes = [root]

    def get_block_hash(self, index: int) -> bytes:
        for block in range(len(self._hashes) - 1, index + 1):
            tokens = self.tokens[block * self._block_size : (block + 1) * self._block_size]
            if len(tokens) < self._block_size:
                raise ValueError(f"block {index} is not full yet")
            parent = self._hashes[-1]
            self._hashes.append(hash_block(parent, tokens))
            if self._on_hashed is not None:
                self._on_hashed(self._hashes[-1], parent if block else None, tokens)
        return self._hashes[index + 1]


class TracedContents:
    """Hashes from a trace, of blocks of `traced_block_size` tokens; what they do not cover is the request's own.

    The engine's block size may differ from the trace's: a block ends within (or at the end of) a traced one, and
    is named after it and the place.
    """

    def __init__(
        self, id: str, hashes: Sequence[bytes], *, block_size: int, traced_block_size: int, root: bytes = b""
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
        return hashed if offset == self._traced_block_size else hashed + b"+" + offset.to_bytes(4, "little")
