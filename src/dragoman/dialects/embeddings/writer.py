"""The answer of /v1/embeddings, in OpenAI's form and in vLLM's."""

from __future__ import annotations

import base64
import struct

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.embed import Embeddings
from ..base import Header, Profile
from ..usage import ReadUsage, read_usage


class _Embedding(Struct, frozen=True):
    """embedding: numbers, or base64 of the little-endian float32 that they are."""

    index: int
    object: str
    embedding: tuple[float, ...] | str


class _Answer(Struct, frozen=True, omit_defaults=True):
    """id, created: vLLM's."""

    object: str
    data: list[_Embedding]
    model: str
    usage: ReadUsage
    id: str | UnsetType = UNSET
    created: int | UnsetType = UNSET


def embeddings_answer(made: Embeddings, header: Header, profile: Profile, *, as_base64: bool) -> bytes:
    """A number that is written out is the float32 exactly: read as a double it rounds to the same bits."""
    form = _text if as_base64 else _numbers
    data = [_Embedding(index, "embedding", form(vector)) for index, vector in enumerate(made.vectors)]
    answer = _Answer("list", data, header.model, read_usage(made.prompt_tokens, profile))
    if profile is Profile.VLLM:
        answer = msgspec.structs.replace(answer, id=header.id, created=header.created)
    return msgspec.json.encode(answer)


def _numbers(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def _text(vector: bytes) -> str:
    return base64.b64encode(vector).decode()
