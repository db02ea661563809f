"""Ollama's embeddings: /api/embed, /api/embeddings."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ...core.encoder_requests import Embeddings, TextInputs
from ..field_errors import invalid_value
from ..generation_fields import resolve_model
from ..interfaces import ReaderOptions
from ..json_encoding import encode_string
from ..request_body import BodySchema, ParsedBody
from ..vector_numbers import list_numbers
from .keep_alive import read_keep_alive
from .wire import (
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
)

MAX_INPUTS = 2_048
"""Maximum inputs of one request, as in OpenAI's embeddings."""


_EMBED = BodySchema(OllamaEmbedBody)


_EMBEDDINGS = BodySchema(OllamaEmbeddingsBody)


class OllamaEmbedCall(Struct, frozen=True):
    """A parsed embedding request.

    texts: without inputs, the call only loads the model.
    normalize: None is the model's default.
    keep_alive, warnings, unknown: as in `OllamaCall` and `GenerationCall`.
    """

    model: str
    texts: TextInputs
    dimensions: int | None = None
    normalize: bool | None = None
    keep_alive: float | None = None
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def read_embed(data: bytes, options: ReaderOptions) -> OllamaEmbedCall:
    """Parse a body of /api/embed, whose vectors have length 1. Raises RequestError."""
    parsed = ParsedBody(data)
    body = parsed.decode(_EMBED)
    warnings, unknown = OLLAMA_EMBED.classify_body(parsed, _EMBED)
    inputs = (
        ((body.input,) if body.input else ())
        if not isinstance(body.input, list)
        else tuple(body.input)
    )
    if len(inputs) > MAX_INPUTS:
        raise invalid_value("input", f"expected at most {MAX_INPUTS} inputs, got {len(inputs)}")
    if "" in inputs:
        raise invalid_value(f"input[{inputs.index('')}]", "an input must not be empty")
    return OllamaEmbedCall(
        resolve_model(body.model, options),
        # Ollama truncates an input to the context by default.
        TextInputs(inputs, None if body.truncate is False else -1),
        body.dimensions or None,
        True,
        read_keep_alive(body.keep_alive),
        tuple(warnings),
        unknown,
    )


def read_embeddings(data: bytes, options: ReaderOptions) -> OllamaEmbedCall:
    """Parse a body of /api/embeddings. Raises RequestError."""
    parsed = ParsedBody(data)
    body = parsed.decode(_EMBEDDINGS)
    warnings, unknown = OLLAMA_EMBEDDINGS.classify_body(parsed, _EMBEDDINGS)
    return OllamaEmbedCall(
        resolve_model(body.model, options),
        TextInputs((body.prompt,) if body.prompt else ()),
        keep_alive=read_keep_alive(body.keep_alive),
        warnings=tuple(warnings),
        unknown=unknown,
    )


def render_embed(model: str, embeddings: Embeddings | None, total: int, load: int) -> bytes:
    """Serialize the response of /api/embed.

    embeddings: None for a request without inputs.
    total, load: durations of the request and of loading the model, in nanoseconds.
    """
    vectors = () if embeddings is None else embeddings.vectors
    return (
        b'{"model":%s,"embeddings":[%s],"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d}'
        % (
            encode_string(model),
            b",".join([_encode_vector(vector) for vector in vectors]),
            total,
            load,
            0 if embeddings is None else embeddings.prompt_tokens,
        )
    )


def render_embeddings(embeddings: Embeddings | None) -> bytes:
    """Serialize the response of /api/embeddings."""
    return b'{"embedding":%s}' % (
        b"[]" if embeddings is None else _encode_vector(embeddings.vectors[0])
    )


def _encode_vector(vector: bytes) -> bytes:
    return msgspec.json.encode(list_numbers(vector))
