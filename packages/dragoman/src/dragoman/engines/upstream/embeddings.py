"""Embeddings of an upstream: encodes the requests, decodes the vectors. Pure."""

from __future__ import annotations

import base64
import binascii
import math
import sys
from array import array
from typing import Any

from msgspec import Struct

from ...core.encoder_requests import Embeddings, TextEmbedRequest
from ...core.errors import EngineError, Unsupported
from .encoder_wire import EncoderUsage, check_no_truncation, count_tokens, decode_response
from .server_kind import ServerKind
from .upstream_request import UpstreamRequest, encode_body

LARGE_BODY = 64 * 1024
"""Size in bytes above which a response is decoded on a thread."""


class Vector(Struct, frozen=True):
    """One vector. embedding: float32 in Base64, or the numbers."""

    embedding: str | list[float]
    index: int | None = None


class Vectors(Struct, frozen=True):
    """The response of `/embeddings`."""

    data: list[Vector]
    usage: EncoderUsage = EncoderUsage()


def encode_embed_request(
    request: TextEmbedRequest, kind: ServerKind, model: str
) -> UpstreamRequest:
    """Encode an embedding request. Raises Unsupported for options that this kind of
    server lacks.
    """
    texts = request.texts
    inputs = texts.inputs
    # Base64 takes 5.3 characters per float32 number, and needs no parsing of decimal
    # numbers.
    body: dict[str, Any] = {
        "model": model,
        "input": inputs[0] if len(inputs) == 1 else inputs,
        "encoding_format": "base64",
    }
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    if kind.has_encoding_options:
        if request.normalize is not None:
            body["use_activation"] = request.normalize
        if texts.truncate is not None:
            body["truncate_prompt_tokens"] = texts.truncate
            if texts.keep_end:
                # Sent only if needed: with this field, even for the default side, vLLM
                # truncates special tokens too.
                body["truncation_side"] = "left"
        if not texts.add_special_tokens:
            body["add_special_tokens"] = False
    else:
        check_no_options(request)
    return UpstreamRequest("/embeddings", encode_body(body))


def check_no_options(request: TextEmbedRequest) -> None:
    """Raise Unsupported for options that only vLLM's servers have."""
    texts = request.texts
    if request.normalize is False:
        raise Unsupported(
            "The upstream controls normalization; `normalize` cannot be set.", param="normalize"
        )
    check_no_truncation(texts.truncate)
    if not texts.add_special_tokens and any(isinstance(text, str) for text in texts.inputs):
        raise Unsupported(
            "The upstream controls special tokens; `add_special_tokens` cannot be set.",
            param="add_special_tokens",
        )


def decode_embeddings(body: bytes, request: TextEmbedRequest, kind: ServerKind) -> Embeddings:
    """Decode the vectors. Raises EngineError for an invalid response, Unsupported if
    `dimensions` was ignored.
    """
    return build_embeddings(decode_response(body, Vectors), request, kind)


def build_embeddings(answer: Vectors, request: TextEmbedRequest, kind: ServerKind) -> Embeddings:
    """Check the vectors and put them in order. Raises as `decode_embeddings`."""
    if len(answer.data) != len(request.texts.inputs):
        raise EngineError(
            f"The upstream returned {len(answer.data)} vectors for {len(request.texts.inputs)} "
            f"inputs."
        )
    ordered: list[bytes | None] = [None] * len(answer.data)
    for position, entry in enumerate(answer.data):
        index = position if entry.index is None else entry.index
        if not 0 <= index < len(ordered) or ordered[index] is not None:
            raise EngineError("The upstream returned vectors with invalid indexes.")
        if isinstance(entry.embedding, str):
            try:
                vector = base64.b64decode(entry.embedding, validate=True)
            except (binascii.Error, ValueError):
                raise EngineError("The upstream sent an invalid vector.") from None
        else:
            # An upstream that ignores `encoding_format` sends numbers.
            try:
                vector = _pack(array("f", entry.embedding))
            except OverflowError:
                raise EngineError("The upstream sent an invalid vector.") from None
        if len(vector) % 4:
            raise EngineError("The upstream sent an invalid vector.")
        ordered[index] = vector
    vectors = tuple(vector for vector in ordered if vector is not None)
    sizes = {len(vector) // 4 for vector in vectors}
    if len(sizes) != 1 or sizes == {0}:
        raise EngineError("The upstream returned vectors of different lengths.")
    [dimensions] = sizes
    if request.dimensions not in (None, dimensions):
        raise Unsupported(
            f"The upstream's vectors have {dimensions} dimensions.", param="dimensions"
        )
    # Servers without the option are not asked to normalize. A normalized vector does
    # not change here.
    if request.normalize and not kind.has_encoding_options:
        vectors = tuple(map(_normalize, vectors))
    return Embeddings(vectors, dimensions, count_tokens(answer.usage))


def _pack(numbers: array[float]) -> bytes:
    """Pack float32 numbers in little-endian order."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _normalize(vector: bytes) -> bytes:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    length = math.hypot(*numbers)
    return vector if length == 0 else _pack(array("f", [number / length for number in numbers]))
