"""Embeddings and scores: requests and answers that are not streams of events."""

from __future__ import annotations

from msgspec import Struct


class EmbedRequest(Struct, frozen=True):
    """inputs: token ids, one tuple an input. dimensions: keep the first so many and normalise again."""

    model: str
    inputs: tuple[tuple[int, ...], ...]
    dimensions: int | None = None
    normalize: bool = True


class Embeddings(Struct, frozen=True):
    """vectors: little-endian float32 bytes, one an input, all of `dimensions` numbers."""

    vectors: tuple[bytes, ...]
    dimensions: int
    prompt_tokens: int
