"""Ollama's /api/embed and /api/embeddings: parses their bodies, renders their vectors."""

from __future__ import annotations

import struct

from msgspec import Struct

from ...core.embeddings import Embeddings, TextInputs
from ..base import ReaderOptions
from ..body import BodySchema, ParsedBody, invalid_value
from ..fields import resolve_model
from ..json_encoding import encode_string
from .wire import OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OllamaEmbedBody, OllamaEmbeddingsBody, read_keep_alive

# The limit of OpenAI's embeddings.
MAX_INPUTS = 2_048
_EMBED, _EMBEDDINGS = BodySchema(OllamaEmbedBody), BodySchema(OllamaEmbeddingsBody)


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
    inputs = ((body.input,) if body.input else ()) if not isinstance(body.input, list) else tuple(body.input)
    if len(inputs) > MAX_INPUTS:
        raise invalid_value("input", f"expected at most {MAX_INPUTS} inputs, got {len(inputs)}")
    if "" in inputs:
        raise invalid_value(f"input[{inputs.index('')}]", "an input must not be empty")
    return OllamaEmbedCall(
        resolve_model(body.model, options),
        # Ollama truncates an input to the context unless it is told not to.
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
    """The response of /api/embed. embeddings: None where nothing was to be embedded. total, load: nanoseconds."""
    vectors = () if embeddings is None else embeddings.vectors
    return b'{"model":%s,"embeddings":[%s],"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d}' % (
        encode_string(model),
        b",".join([_render_vector(vector) for vector in vectors]),
        total,
        load,
        0 if embeddings is None else embeddings.prompt_tokens,
    )


def render_embeddings(embeddings: Embeddings | None) -> bytes:
    """The response of /api/embeddings."""
    return b'{"embedding":%s}' % (b"[]" if embeddings is None else _render_vector(embeddings.vectors[0]))


def _render_vector(vector: bytes) -> bytes:
    """vector: little-endian float32. Nine significant digits determine a float32."""
    numbers = struct.unpack(f"<{len(vector) // 4}f", vector)
    return b"[%s]" % ",".join([f"{number:.9g}" for number in numbers]).encode()
