"""Hashes of a sequence's blocks, from token ids or from a trace that contains only
hashes.

A hash covers a full block and everything before it, so two sequences share a prefix
exactly as far as their hashes agree. It also covers whatever else keys and values depend
on: the adapter, the images in the block, and for a first block the cache salt. Hashes are
vLLM's (vllm/v1/core/kv_cache_utils.py), so that an index of another program, which hashes
tokens itself, finds them.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from itertools import chain
from typing import Literal, Protocol

from msgspec import Struct

from dragoman.core.prompt_images import PromptImage

from .cbor import encode_cbor

HashAlgorithm = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor", "sha256_cbor_64bit"]
"""vLLM's `--prefix-caching-hash-algo`. sha256_cbor_64bit is of vLLM 0.10, whose hashes
have 64 bits.
"""
DEFAULT_SEED = "vllm-none-hash"
"""vLLM's seed of cryptographic hashes if PYTHONHASHSEED is not set."""
_NUM_KNOWN_BLOCKS = 16384
"""Number of blocks whose hashes a hasher remembers; about 0.5 KB each."""


class BlockContents(Protocol):
    """The block hashes of a sequence."""

    def get_block_hash(self, index: int) -> bytes:
        """Return the hash of the full block at this index of prompt and output. All of
        its tokens must be known.
        """
        ...

    def iterate_block_hashes(self, begin: int, end: int) -> Iterator[bytes]:
        """Iterate over the hashes of the full blocks from `begin` up to `end`."""
        ...


ImageKeys = tuple[tuple[str, int], ...]
"""The images in a block: the digest of each, and the offset of its first token from the
start of the block.
"""
ExtraKeys = tuple[tuple[str | int, ...], ...]
"""What a block's hash covers besides its tokens, in vLLM's form and order."""


class CacheKeys(Struct, frozen=True):
    """What the keys and values of a whole request depend on besides its tokens.

    lora: the adapter's name; empty without one.
    lora_path: where its weights are.
    salt: the request's cache salt.
    private: a text that no other request has, for one that shares no block.
    """

    lora: str = ""
    lora_path: str = ""
    salt: str = ""
    private: str = ""

    def build_extra_keys(self, images: ImageKeys, *, is_first: bool) -> ExtraKeys | None:
        """Build a block's extra keys; None if there are none. is_first: whether the block
        begins the sequence.
        """
        keys: list[tuple[str | int, ...]] = []
        if self.lora:
            keys.append(("lora", self.lora, self.lora_path))
        keys += (("mm", digest, offset) for digest, offset in images)
        if is_first and self.salt:
            keys.append(("cache_salt", self.salt))
        if is_first and self.private:
            keys.append(("private", self.private))
        return tuple(keys) or None


NO_KEYS = CacheKeys()


class BlockHasher:
    """Hashes blocks as vLLM does.

    algorithm: see `HashAlgorithm`.
    seed: vLLM's PYTHONHASHSEED. vLLM draws a secret one for xxhash, which is no
        cryptographic hash.
    """

    def __init__(self, algorithm: HashAlgorithm = "sha256", seed: str = DEFAULT_SEED) -> None:
        """Raises ValueError if the library of the algorithm is missing."""
        self._encode = encode_cbor if "cbor" in algorithm else _encode_pickle
        self._digest = _import_xxhash() if algorithm.startswith("xxhash") else _digest_sha256
        self._is_short = algorithm.endswith("_64bit")
        self.root = self._hash(seed)
        """The parent of every first block."""
        self.hash_known_block = lru_cache(_NUM_KNOWN_BLOCKS)(self.hash_block)
        """As `hash_block`, for blocks that come again, as the prefixes of prompts do: to
        find a known hash costs a fifth of computing it.
        """

    def _hash(self, value: object) -> bytes:
        digest = self._digest(self._encode(value))
        return digest[-8:] if self._is_short else digest

    def hash_block(
        self, parent: bytes, tokens: bytes, extra_keys: ExtraKeys | None = None
    ) -> bytes:
        """Hash a block cryptographically: a collision would give one client another
        client's cached prompt.

        tokens: C ints, which are a smaller key of the cache than Python's.
        """
        named = int.from_bytes(parent, "big") if self._is_short else parent
        return self._hash((named, tuple(array("i", tokens)), extra_keys))


def _encode_pickle(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _digest_sha256(data: bytes) -> bytes:
    return sha256(data).digest()


def _import_xxhash() -> Callable[[bytes], bytes]:
    try:
        digest: Callable[[bytes], bytes] = import_module("xxhash").xxh3_128_digest
    except ImportError:
        raise ValueError(
            "--prefix-caching-hash-algo xxhash needs the library: pip install xxhash"
        ) from None
    return digest


DEFAULT_HASHER = BlockHasher()
BlockHashed = Callable[[bytes, bytes | None, Sequence[int], ImageKeys], None]


class TokenContents:
    """Block contents from token ids. The caller appends sampled tokens to the attribute
    `tokens` before the next step is scheduled.

    on_hashed: called for every hashed block with its hash, its parent's (None for the
        first), its tokens and images.
    """

    __slots__ = (
        "_block_size",
        "_hasher",
        "_hashes",
        "_images",
        "_keys",
        "_num_prompt_blocks",
        "_on_hashed",
        "tokens",
    )

    def __init__(
        self,
        block_size: int,
        tokens: Sequence[int],
        keys: CacheKeys = NO_KEYS,
        on_hashed: BlockHashed | None = None,
        images: Sequence[PromptImage] = (),
        hasher: BlockHasher = DEFAULT_HASHER,
    ) -> None:
        # C ints: one object per token would dominate the memory of a stream.
        self.tokens = array("i", tokens)
        self._images = images
        self._on_hashed = on_hashed
        self._block_size = block_size
        self._num_prompt_blocks = len(tokens) // block_size
        self._keys = keys
        self._hasher = hasher
        # With the root in front, the entry at a block's index is its parent.
        self._hashes = [hasher.root]

    def get_block_hash(self, index: int) -> bytes:
        for _ in self._hash_blocks(index, index + 1):
            pass
        return self._hashes[index + 1]

    def iterate_block_hashes(self, begin: int, end: int) -> Iterator[bytes]:
        # The head of the queue looks up its prompt in each step, so known hashes must
        # cost little.
        known = self._hashes[begin + 1 : end + 1]
        first_unknown = begin + len(known)
        return (
            iter(known)
            if first_unknown == end
            else chain(known, self._hash_blocks(first_unknown, end))
        )

    def _hash_blocks(self, begin: int, end: int) -> Iterator[bytes]:
        """Hash the blocks up to `end`, each when its turn comes. Yields the hashes from
        `begin` on.
        """
        hashes = self._hashes
        size = self._block_size
        keys = self._keys
        hasher = self._hasher
        while (block := len(hashes) - 1) < end:
            first = block * size
            tokens = self.tokens[first : first + size]
            if len(tokens) < size:
                raise ValueError(f"block {block} is not full yet")
            parent = hashes[block]
            images = self._find_images(first, first + size) if self._images else ()
            extra_keys = None
            if not block or images or keys.lora:
                extra_keys = keys.build_extra_keys(images, is_first=not block)
            is_prompt = block < self._num_prompt_blocks
            hash_block = hasher.hash_known_block if is_prompt else hasher.hash_block
            block_hash = hash_block(parent, tokens.tobytes(), extra_keys)
            hashes.append(block_hash)
            if self._on_hashed is not None:
                # The root is not a block: as in vLLM's events, a first block has no
                # parent.
                self._on_hashed(block_hash, parent if block else None, tokens, images)
            if block >= begin:
                yield block_hash

    def _find_images(self, begin: int, end: int) -> ImageKeys:
        present = (image for image in self._images if image.begin < end and image.end > begin)
        # As in vLLM's `extra_keys`: the placeholder ids of all images are the same; only
        # digests differ.
        return tuple((image.digest.hex(), image.begin - begin) for image in present)


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
        return next(self.iterate_block_hashes(index, index + 1))

    def iterate_block_hashes(self, begin: int, end: int) -> Iterator[bytes]:
        return chain.from_iterable(self._iterate_runs(begin, end))

    def _iterate_runs(self, begin: int, end: int) -> Iterator[Sequence[bytes]]:
        """Yield the hashes in runs, one for each traced block: a long prompt has far
        fewer of these than blocks.
        """
        block_size = self._block_size
        traced_size = self._traced_block_size
        index = begin
        while index < end:
            traced = ((index + 1) * block_size - 1) // traced_size
            if traced >= len(self._hashes):
                break
            begins_at = traced * traced_size
            first = begins_at // block_size
            run = _hash_traced_block(
                self._root + self._hashes[traced],
                (first + 1) * block_size - begins_at,
                block_size,
                traced_size,
            )
            yield run[index - first : end - first]
            index = first + len(run)
        if index < end:
            private = self._request_root + b"/"
            yield [private + own.to_bytes(4, "little") for own in range(index, end)]


@lru_cache(maxsize=4096)
def _hash_traced_block(
    hashed: bytes, first_end: int, block_size: int, traced_size: int
) -> tuple[bytes, ...]:
    """Hash the blocks that end in a traced block, the first one `first_end` tokens after
    its begin. Cached, since prompts share traced blocks.
    """
    return tuple([hashed + end for end in _list_ends(first_end, block_size, traced_size)])


@lru_cache(maxsize=64)
def _list_ends(first_end: int, block_size: int, traced_size: int) -> tuple[bytes, ...]:
    """List what the hashes of the blocks add to that of the traced block in which they
    end: nothing if it ends there too.
    """
    return tuple(
        [
            b"" if end == traced_size else b"+" + end.to_bytes(4, "little")
            for end in range(first_end, traced_size + 1, block_size)
        ]
    )
