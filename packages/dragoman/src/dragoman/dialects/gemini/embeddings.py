"""Gemini's embeddings: embedContent and batchEmbedContents."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ...core.encoder_requests import Embeddings, TextInputs
from ..field_errors import invalid_value
from ..interfaces import ReaderOptions
from ..request_body import BodySchema, ParsedBody
from ..vector_numbers import list_numbers
from .field_spelling import normalize_spelling
from .wire import (
    GEMINI_BATCH_EMBED,
    GEMINI_EMBED,
    GeminiBatchEmbedBody,
    GeminiContent,
    GeminiEmbedBody,
)

_EMBED = BodySchema(GeminiEmbedBody, numbers_as_strings=True)
_BATCH = BodySchema(GeminiBatchEmbedBody, numbers_as_strings=True)


class GeminiEmbedCall(Struct, frozen=True):
    """A parsed embedding request.

    is_batch: the response is a list.
    warnings, unknown: as in `GenerationCall`.
    """

    model: str
    texts: TextInputs
    dimensions: int | None
    is_batch: bool
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def read_embed_content(data: bytes, _: ReaderOptions, *, model: str) -> GeminiEmbedCall:
    """Parse a body of embedContent. Raises RequestError."""
    parsed = ParsedBody(normalize_spelling(data, GeminiEmbedBody))
    body = parsed.decode(_EMBED)
    warnings, unknown = GEMINI_EMBED.classify_body(parsed, _EMBED)
    texts = TextInputs((_read_text(body.content, "content"),))
    return GeminiEmbedCall(model, texts, body.outputDimensionality, False, tuple(warnings), unknown)


def read_batch_embed_contents(data: bytes, _: ReaderOptions, *, model: str) -> GeminiEmbedCall:
    """Parse a body of batchEmbedContents. Raises RequestError."""
    parsed = ParsedBody(normalize_spelling(data, GeminiBatchEmbedBody))
    body = parsed.decode(_BATCH)
    warnings, unknown = GEMINI_BATCH_EMBED.classify_body(parsed, _BATCH)
    first = body.requests[0].outputDimensionality
    for i, request in enumerate(body.requests):
        path = f"requests[{i}]"
        if request.model and request.model.removeprefix("models/") != model:
            raise invalid_value(f"{path}.model", "it is not the model of the path")
        if request.outputDimensionality != first:
            raise invalid_value(
                f"{path}.outputDimensionality", "all requests of a batch need the same"
            )
        if request.taskType not in (None, "", "TASK_TYPE_UNSPECIFIED"):
            warnings.append(f"{path}.taskType: a text is embedded alike for all tasks")
        if request.title:
            warnings.append(f"{path}.title: a text is embedded without a title")
    texts = tuple(
        [
            _read_text(request.content, f"requests[{i}].content")
            for i, request in enumerate(body.requests)
        ]
    )
    return GeminiEmbedCall(model, TextInputs(texts), first, True, tuple(warnings), unknown)


def render_gemini_embeddings(embeddings: Embeddings, *, is_batch: bool) -> bytes:
    """Serialize the response."""
    vectors = [
        b'{"values":%s}' % msgspec.json.encode(list_numbers(vector))
        for vector in embeddings.vectors
    ]
    if not is_batch:
        return b'{"embedding":%s}' % vectors[0]
    return b'{"embeddings":[%s]}' % b",".join(vectors)


def _read_text(content: GeminiContent, path: str) -> str:
    texts: list[str] = []
    for i, part in enumerate(content.parts or ()):
        if part.text is None:
            raise invalid_value(f"{path}.parts[{i}]", "only text is embedded")
        texts.append(part.text)
    text = "".join(texts)
    if not text:
        raise invalid_value(path, "an input must not be empty")
    return text
