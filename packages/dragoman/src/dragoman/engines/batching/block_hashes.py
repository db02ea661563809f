"""Hashes of KV cache blocks, each of which covers a block and everything before it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from ...core.prompt_images import PromptImage
from .block_pool import BLOCK_SIZE


def hash_block(parent: bytes, tokens: Sequence[int], image_key: bytes = b"") -> bytes:
    """Compute the hash of a full block. It is cryptographic: a collision would reveal
    one client's prompt to another.

    image_key: see `encode_image_key`.
    """
    return blake2b(array("q", tokens).tobytes() + image_key, digest_size=16, key=parent).digest()


def encode_image_key(images: Iterable[PromptImage], begin: int, end: int) -> bytes:
    """Encode which images the tokens from begin to end belong to: all images share the
    same placeholder id.
    """
    # The position is negative where the image begins within the block.
    return b"".join(
        image.digest + (begin - image.begin).to_bytes(8, "big", signed=True)
        for image in images
        if image.begin < end and begin < image.end
    )


def hash_root(cache_salt: str, adapter: int = 0, *, is_long: bool = False) -> bytes:
    """Compute the parent hash of a first block: only requests with equal salts, weights
    and RoPE share blocks.

    adapter: number of the LoRA adapter; 0 for none.
    is_long: the keys have the model's long RoPE factors, see `Model.rope_window`.
    """
    salt = cache_salt.encode("utf-8", "surrogatepass")
    suffix = b"long" if is_long else b""
    return blake2b(salt, digest_size=16, key=adapter.to_bytes(8, "big") + suffix).digest()


def hash_prefix(
    tokens: Sequence[int], cache_salt: str, *, is_long: bool = False
) -> Iterator[bytes]:
    """Yield the hashes of a prompt's cacheable blocks. The last token is always
    computed: its logits are needed.
    """
    parent = hash_root(cache_salt, is_long=is_long)
    for begin in range(0, (len(tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE, BLOCK_SIZE):
        parent = hash_block(parent, tokens[begin : begin + BLOCK_SIZE])
        yield parent
