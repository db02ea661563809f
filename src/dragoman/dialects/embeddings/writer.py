"""Renders the response of /v1/embeddings in OpenAI's and vLLM's formats."""

from __future__ import annotations

import base64
import struct

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.embeddings import Embeddings
from ..base import Header, Profile
from ..prompt_usage import PromptUsage, build_prompt_usage


class EmbeddingObject(Struct, frozen=True):
    """One vector.

    embedding: numbers, or base64 of little-endian float32.
    """

    index: int
    object: str
    embedding: tuple[float, ...] | str


class EmbeddingsAnswer(Struct, frozen=True, omit_defaults=True):
    """The response body.

    id, created: only in vLLM's profile.
    """

    object: str
    data: list[EmbeddingObject]
    model: str
    usage: PromptUsage
    id: str | UnsetType = UNSET
    created: int | UnsetType = UNSET


def render_embeddings(embeddings: Embeddings, header: Header, profile: Profile, *, as_base64: bool) -> bytes:
    """Render vectors. Each number is the exact float32: parsed as a double it rounds to the same bits."""
    encode = _encode_base64 if as_base64 else _unpack_floats
    data = [EmbeddingObject(index, "embedding", encode(vector)) for index, vector in enumerate(embeddings.vectors)]
    answer = EmbeddingsAnswer("list", data, header.model, build_prompt_usage(embeddings.prompt_tokens, profile))
    if profile is Profile.VLLM:
        answer = msgspec.structs.replace(answer, id=header.id, created=header.created)
    return msgspec.json.encode(answer)


def _unpack_floats(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def _encode_base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()
