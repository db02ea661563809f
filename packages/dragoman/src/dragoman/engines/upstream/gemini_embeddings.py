"""Embeddings of Google's Gemini API: encodes the requests, decodes the vectors. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...core.encoder_requests import Embeddings, TextEmbedRequest
from ...core.errors import Unsupported
from .embeddings import Vector, Vectors, build_embeddings, check_no_options
from .encoder_wire import decode_response
from .gemini_request import build_model_path, name_model
from .server_kind import ServerKind
from .upstream_request import UpstreamRequest, encode_body


class _Vector(Struct, frozen=True):
    values: list[float]


class _Vectors(Struct, frozen=True):
    embeddings: list[_Vector]


def encode_gemini_embed_request(
    request: TextEmbedRequest, _: ServerKind, model: str
) -> UpstreamRequest:
    """Encode a request. Raises Unsupported for options that Gemini lacks."""
    check_no_options(request)
    name = name_model(model)
    shortened = {} if request.dimensions is None else {"outputDimensionality": request.dimensions}
    requests: list[dict[str, Any]] = []
    for text in request.texts.inputs:
        if not isinstance(text, str):
            raise Unsupported("The upstream embeds texts, not token ids.", param="input")
        requests.append({"model": name, "content": {"parts": [{"text": text}]}, **shortened})
    path = f"{build_model_path(model)}:batchEmbedContents"
    return UpstreamRequest(path, encode_body({"requests": requests}))


def decode_gemini_embeddings(
    body: bytes, request: TextEmbedRequest, kind: ServerKind
) -> Embeddings:
    """Decode the vectors. Raises as `build_embeddings`."""
    answer = decode_response(body, _Vectors)
    vectors = Vectors([Vector(each.values) for each in answer.embeddings])
    return build_embeddings(vectors, request, kind)
