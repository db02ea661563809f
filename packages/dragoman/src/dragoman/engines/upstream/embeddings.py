"""Embeddings and scores: encodes the requests for an upstream, and decodes its
responses. Pure.

Embedding requests use OpenAI's `/v1/embeddings`. Score requests use vLLM's `/score` if
the upstream has it, else Cohere's and Jina's `/v1/rerank`, which takes one query, or
the `/rerank` of Text Embeddings Inference (TEI).
"""

from __future__ import annotations

import base64
import binascii
import math
import sys
from array import array
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ...core.embeddings import Embeddings, RelevanceScores, TextEmbedRequest, TextPairs
from ...core.errors import EngineError, Unsupported
from .discovery import ServerKind
from .encode import UpstreamRequest, encode_body

T = TypeVar("T")

LARGE_BODY = 64 * 1024
"""Size in bytes above which a response is decoded on a thread."""


class _Usage(Struct, frozen=True):
    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _Vector(Struct, frozen=True):
    embedding: str | list[float]
    index: int | None = None


class _Vectors(Struct, frozen=True):
    data: list[_Vector]
    usage: _Usage = _Usage()


class _Score(Struct, frozen=True):
    """One score. vLLM's `/score` and TEI name it `score`, Cohere and Jina
    `relevance_score`.
    """

    index: int
    score: float | None = None
    relevance_score: float | None = None


class _Scores(Struct, frozen=True):
    """The response of `/score`, which has `data`, or of `/rerank`."""

    data: list[_Score] | None = None
    results: list[_Score] | None = None
    usage: _Usage | None = None


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
        if request.normalize is False:
            raise Unsupported(
                "The upstream controls normalization; `normalize` cannot be set.", param="normalize"
            )
        _check_no_truncation(texts.truncate)
        if not texts.add_special_tokens and any(isinstance(text, str) for text in inputs):
            raise Unsupported(
                "The upstream controls special tokens; `add_special_tokens` cannot be set.",
                param="add_special_tokens",
            )
    return UpstreamRequest("/embeddings", encode_body(body))


def decode_embeddings(body: bytes, request: TextEmbedRequest, kind: ServerKind) -> Embeddings:
    """Decode the vectors. Raises EngineError for an invalid response, Unsupported if
    `dimensions` was ignored.
    """
    answer = _decode(body, _Vectors)
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
    return Embeddings(vectors, dimensions, _count_tokens(answer.usage))


def encode_score_requests(
    pairs: TextPairs, kind: ServerKind, model: str
) -> tuple[UpstreamRequest, ...]:
    """Encode the pairs: one request, or one per query if the upstream only reranks.
    Raises Unsupported.
    """
    if kind.has_encoding_options:
        queries = pairs.queries[0] if len(pairs.queries) == 1 else pairs.queries
        fields = {
            "max_tokens_per_query": pairs.max_query_tokens,
            "max_tokens_per_doc": pairs.max_document_tokens,
            "truncate_prompt_tokens": pairs.truncate,
            "use_activation": pairs.activation,
        }
        score_body: dict[str, Any] = {
            "model": model,
            "queries": queries,
            "documents": pairs.documents,
        }
        score_body |= {name: value for name, value in fields.items() if value is not None}
        return (UpstreamRequest("/score", encode_body(score_body), is_versioned=False),)
    for param, limit in (
        ("max_tokens_per_query", pairs.max_query_tokens),
        ("max_tokens_per_doc", pairs.max_document_tokens),
    ):
        if limit is not None:
            raise Unsupported("The upstream does not truncate the texts of one side.", param=param)
    _check_no_truncation(pairs.truncate)
    documents = (
        [pairs.documents]
        if len(pairs.queries) == 1
        else [(document,) for document in pairs.documents]
    )
    if kind.has_tei_rerank:
        options: dict[str, Any] = (
            {} if pairs.activation is None else {"raw_scores": not pairs.activation}
        )
        if pairs.truncate is not None:
            options["truncate"] = True
        bodies = [
            {"query": query, "texts": texts, **options}
            for query, texts in zip(pairs.queries, documents, strict=True)
        ]
        return tuple(
            UpstreamRequest("/rerank", encode_body(body), is_versioned=False) for body in bodies
        )
    if pairs.activation is not None:
        raise Unsupported(
            "The upstream controls the activation of scores; `use_activation` cannot be set.",
            param="use_activation",
        )
    return tuple(
        UpstreamRequest(
            "/rerank",
            encode_body({"model": model, "query": query, "documents": texts, "top_n": len(texts)}),
        )
        for query, texts in zip(pairs.queries, documents, strict=True)
    )


def decode_scores(bodies: list[bytes], pairs: TextPairs) -> RelevanceScores:
    """Decode the responses to `encode_score_requests`. Raises EngineError for an
    invalid one.
    """
    expected = len(pairs.documents) if len(bodies) == 1 else 1
    scores: list[float] = []
    tokens = 0
    for body in bodies:
        # TEI's and SGLang's response is the list itself.
        is_list = body.lstrip()[:1] == b"["
        answer = _Scores(_decode(body, list[_Score])) if is_list else _decode(body, _Scores)
        scores_by_index = {
            entry.index: entry.relevance_score if entry.score is None else entry.score
            for entry in answer.data or answer.results or ()
        }
        ordered = [
            score for score in map(scores_by_index.get, range(expected)) if score is not None
        ]
        if len(ordered) != expected or len(scores_by_index) != expected:
            raise EngineError("The upstream returned scores that do not match the request.")
        scores += ordered
        tokens += 0 if answer.usage is None else _count_tokens(answer.usage)
    return RelevanceScores(tuple(scores), tokens)


def _check_no_truncation(truncate: int | None) -> None:
    """Raise Unsupported for a truncation to a number of tokens.

    -1 passes: it only permits truncation to the context, and an upstream that does not
    truncate rejects longer texts.
    """
    if truncate is not None and truncate >= 0:
        raise Unsupported(
            "The upstream does not truncate to a number of tokens.", param="truncate_prompt_tokens"
        )


def _decode(body: bytes, type: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise EngineError("The upstream sent an invalid response.") from None


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


def _count_tokens(usage: _Usage) -> int:
    return usage.prompt_tokens or usage.total_tokens or 0
