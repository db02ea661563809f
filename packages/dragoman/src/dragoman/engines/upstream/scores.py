"""Scores of an upstream: encodes the requests, decodes the scores. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...core.encoder_requests import RelevanceScores, TextPairs
from ...core.errors import EngineError, Unsupported
from .encoder_wire import EncoderUsage, check_no_truncation, count_tokens, decode_response
from .upstream_request import UpstreamRequest, encode_body


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
    usage: EncoderUsage | None = None


def encode_score_request(pairs: TextPairs, model: str) -> tuple[UpstreamRequest, ...]:
    """Encode the pairs for vLLM's `/score`, which takes them all."""
    queries = pairs.queries[0] if len(pairs.queries) == 1 else pairs.queries
    fields = {
        "max_tokens_per_query": pairs.max_query_tokens,
        "max_tokens_per_doc": pairs.max_document_tokens,
        "truncate_prompt_tokens": pairs.truncate,
        "use_activation": pairs.activation,
    }
    body: dict[str, Any] = {"model": model, "queries": queries, "documents": pairs.documents}
    body |= {name: value for name, value in fields.items() if value is not None}
    return (UpstreamRequest("/score", encode_body(body), is_versioned=False),)


def encode_rerank_requests(pairs: TextPairs, model: str) -> tuple[UpstreamRequest, ...]:
    """Encode the pairs for Cohere's and Jina's `/rerank`, one request per query. Raises
    Unsupported.
    """
    rankings = _split_by_query(pairs)
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
        for query, texts in rankings
    )


def encode_tei_rerank_requests(pairs: TextPairs, _: str) -> tuple[UpstreamRequest, ...]:
    """Encode the pairs for the `/rerank` of Text Embeddings Inference, one request per
    query. Raises Unsupported.
    """
    rankings = _split_by_query(pairs)
    options: dict[str, Any] = (
        {} if pairs.activation is None else {"raw_scores": not pairs.activation}
    )
    if pairs.truncate is not None:
        options["truncate"] = True
    return tuple(
        UpstreamRequest(
            "/rerank",
            encode_body({"query": query, "texts": texts, **options}),
            is_versioned=False,
        )
        for query, texts in rankings
    )


def _split_by_query(pairs: TextPairs) -> list[tuple[str, tuple[str, ...]]]:
    """Return each query with its texts. Raises Unsupported for limits, which no
    `/rerank` has.
    """
    for param, limit in (
        ("max_tokens_per_query", pairs.max_query_tokens),
        ("max_tokens_per_doc", pairs.max_document_tokens),
    ):
        if limit is not None:
            raise Unsupported("The upstream does not truncate the texts of one side.", param=param)
    check_no_truncation(pairs.truncate)
    if len(pairs.queries) == 1:
        return [(pairs.queries[0], pairs.documents)]
    texts = ((document,) for document in pairs.documents)
    return list(zip(pairs.queries, texts, strict=True))


def decode_scores(bodies: list[bytes], pairs: TextPairs) -> RelevanceScores:
    """Decode the responses. Raises EngineError for an
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
