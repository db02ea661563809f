"""Scores of an upstream: encodes the requests, decodes the scores. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...core.encoder_requests import RelevanceScores, TextPairs
from ...core.errors import EngineError, Unsupported
from .embeddings import EmbeddingUsage, check_no_truncation, count_tokens, decode_response
from .server_kinds import ServerKind
from .shared_encoding import UpstreamRequest, encode_body


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
    usage: EmbeddingUsage | None = None


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
    check_no_truncation(pairs.truncate)
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
        answer = (
            _Scores(decode_response(body, list[_Score]))
            if is_list
            else decode_response(body, _Scores)
        )
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
        tokens += 0 if answer.usage is None else count_tokens(answer.usage)
    return RelevanceScores(tuple(scores), tokens)
