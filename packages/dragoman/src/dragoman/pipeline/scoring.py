"""Scores of pairs of texts, from a cross-encoder or as the similarity of embeddings.

The texts are untrusted: names of control tokens in them are plain text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..core.encoder_requests import (
    EmbeddingInfo,
    Embeddings,
    EmbedRequest,
    RelevanceScores,
    ScoreRequest,
    Similarity,
    TextEmbedRequest,
    TextInputs,
    TextPairs,
    TokenizedPair,
)
from ..core.errors import ContextTooLong, RequestError, Unsupported
from ..prompts.hf_tokenizer import HfTokenizer
from ..prompts.pair_template import PairTemplate
from .embedding import (
    MAX_INLINE_INPUT_CHARS,
    estimate_tokens,
    find_embedder,
    run_in_turn,
    truncate_ids,
)
from .engine_backends import ScorerBackend
from .prompt_length import check_countable
from .request_queue import ONE_QUEUE, QueueShare
from .served_model import ServedModel

T = TypeVar("T")

_NO_ACTIVATION = (
    "This model's scores are similarities of embeddings, which use no activation function."
)


async def score_pairs(
    model: ServedModel, request: TextPairs, *, queue_share: QueueShare = ONE_QUEUE
) -> RelevanceScores:
    """Score pairs of texts. queue_share: as in CallTerms.

    Raises:
        RequestError: the model does not support the request.
        Overloaded: the queue is full.
    """
    model.queues.encoding.check_capacity(queue_share)
    if (encoder := model.text_encoder) is not None:
        texts = (*request.queries, *request.documents)
        if encoder.scores_texts:
            return await run_in_turn(
                model, queue_share, estimate_tokens(texts), lambda: encoder.score_texts(request)
            )
        # The remote engine only embeds, so scores are cosines of embeddings.
        if request.activation is not None:
            raise Unsupported(_NO_ACTIVATION, param="use_activation")
        side_limits = (
            ("max_tokens_per_query", request.max_query_tokens),
            ("max_tokens_per_doc", request.max_document_tokens),
        )
        for param, limit in side_limits:
            if limit is not None:
                raise Unsupported(
                    "This model's upstream does not truncate the texts of one side.", param=param
                )
        text_request = TextEmbedRequest(
            model.name, TextInputs(texts, request.truncate), trace=request.trace
        )
        tokens = estimate_tokens(texts)
        embeddings = await run_in_turn(
            model, queue_share, tokens, lambda: encoder.embed_texts(text_request)
        )
        return await queue_share.run_in_thread(
            lambda: _compute_similarities(embeddings, len(request.queries), Similarity.COSINE)
        )
    if isinstance(backend := model.backend, ScorerBackend):
        limit = backend.engine.max_tokens
        _check_lengths(backend.tokenizer, request, limit)
        pairs = await _run_encoding(
            lambda: _encode_pairs(backend, request, limit), request, queue_share
        )
        score_request = ScoreRequest(model.name, pairs, request.activation)
        tokens = sum(len(pair.ids) for pair in pairs)
        return await run_in_turn(
            model, queue_share, tokens, lambda: backend.engine.score(score_request)
        )
    embedder, tokenizer = find_embedder(model)
    if request.activation is not None:
        raise Unsupported(_NO_ACTIVATION, param="use_activation")
    limit = embedder.embedding_info.max_tokens
    _check_lengths(tokenizer, request, limit)
    # Each text is embedded once, however many pairs it is in.
    info = embedder.embedding_info
    inputs = await _run_encoding(
        lambda: _encode_texts(tokenizer, request, info), request, queue_share
    )
    # Cosines are computed from any length; the other functions need the model's own.
    embed_request = EmbedRequest(model.name, inputs)
    embeddings = await run_in_turn(
        model, queue_share, sum(map(len, inputs)), lambda: embedder.embed(embed_request)
    )
    return await queue_share.run_in_thread(
        lambda: _compute_similarities(embeddings, len(request.queries), info.similarity)
    )


def _compute_similarities(
    embeddings: Embeddings, n_queries: int, similarity: Similarity
) -> RelevanceScores:
    """Compute the similarities of the first `n_queries` embeddings with the others."""
    import numpy as np  # noqa: PLC0415 - takes long to import

    vectors = (
        np.frombuffer(b"".join(embeddings.vectors), "<f4")
        .reshape(-1, embeddings.dimensions)
        .astype(np.float64)
    )
    queries, documents = vectors[:n_queries], vectors[n_queries:]
    match similarity:
        case Similarity.COSINE:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            scaled = vectors / np.where(lengths == 0, 1, lengths)
            products = np.vecdot(scaled[n_queries:], scaled[:n_queries])
        case Similarity.DOT:
            products = np.vecdot(documents, queries)
        case Similarity.EUCLIDEAN:
            products = -np.linalg.norm(documents - queries, axis=1)
        case Similarity.MANHATTAN:
            products = -np.abs(documents - queries).sum(axis=1)
    return RelevanceScores(tuple(products.tolist()), embeddings.prompt_tokens)


def _check_lengths(tokenizer: HfTokenizer, request: TextPairs, limit: int) -> None:
    """Reject texts that are certainly too long, before they are tokenized."""
    sides = (
        ("query", request.queries, request.max_query_tokens),
        ("documents", request.documents, request.max_document_tokens),
    )
    for name, texts, max_tokens in sides:
        for index, text in enumerate(texts):
            if request.truncate is not None or max_tokens is not None:
                check_countable(
                    text, limit, tokenizer.longest_token, verb="truncated", param=f"{name}[{index}]"
                )
            elif len(text) > limit * tokenizer.longest_token:
                at_least = -(-len(text) // tokenizer.longest_token)
                raise ContextTooLong(
                    limit=limit, prompt=at_least, at_least=True, param=f"{name}[{index}]"
                )


def _encode_texts(
    tokenizer: HfTokenizer, request: TextPairs, info: EmbeddingInfo
) -> tuple[tuple[int, ...], ...]:
    limit = info.max_tokens
    wrapping = tokenizer.wrapping
    max_text_tokens = limit - len(wrapping.prefix) - len(wrapping.suffix)
    sides = (
        ("query", request.queries, request.max_query_tokens, info.query_prompt),
        ("documents", request.documents, request.max_document_tokens, info.document_prompt),
    )
    inputs: list[tuple[int, ...]] = []
    for name, texts, max_tokens, prompt in sides:
        for index, text in enumerate(texts):
            ids = _encode_first(tokenizer, prompt + text, max_tokens)
            if len(ids) > max_text_tokens and request.truncate is None:
                raise _build_too_long_error(limit, len(ids) + limit - max_text_tokens, name, index)
            truncate_to = (
                max_text_tokens
                if request.truncate is None or request.truncate < 0
                else _subtract_tokens(request.truncate, limit - max_text_tokens)
            )
            inputs.append(
                (
                    *wrapping.prefix,
                    *truncate_ids(ids, min(max_text_tokens, truncate_to)),
                    *wrapping.suffix,
                )
            )
    return tuple(inputs)


def _encode_pairs(
    backend: ScorerBackend, request: TextPairs, limit: int
) -> tuple[TokenizedPair, ...]:
    if backend.template is not None:
        return _write_pairs(backend.tokenizer, backend.template, request, limit)
    tokenizer = backend.tokenizer
    wrapping = tokenizer.wrapping
    n_special = len(wrapping.pair_prefix) + len(wrapping.pair_separator) + len(wrapping.pair_suffix)
    # Usually there is one query with many documents, so each query is tokenized only
    # once.
    queries = {
        text: _encode_first(tokenizer, backend.query_prompt + text, request.max_query_tokens)
        for text in dict.fromkeys(request.queries)
    }
    types = wrapping.pair_types
    pairs: list[TokenizedPair] = []
    for index, (query, document) in enumerate(request.expand_pairs()):
        first = (*wrapping.pair_prefix, *queries[query], *wrapping.pair_separator)
        second = _encode_first(tokenizer, document, request.max_document_tokens)
        if request.truncate is not None:
            max_pair_tokens = limit if request.truncate < 0 else min(request.truncate, limit)
            # Only the document is cut, as in vLLM and TEI (`only_second`): without its
            # query a pair has no meaning.
            second = truncate_ids(
                second, _subtract_tokens(max_pair_tokens, n_special + len(queries[query]))
            )
        elif len(first) + len(second) + len(wrapping.pair_suffix) > limit:
            raise _build_too_long_error(
                limit, len(first) + len(second) + len(wrapping.pair_suffix), "documents", index
            )
        pair_types = (
            *types[0],
            *(types[1],) * len(queries[query]),
            *types[2],
            *(types[3],) * len(second),
            *types[4],
        )
        pairs.append(TokenizedPair((*first, *second, *wrapping.pair_suffix), pair_types))
    return tuple(pairs)


def _write_pairs(
    tokenizer: HfTokenizer, template: PairTemplate, request: TextPairs, limit: int
) -> tuple[TokenizedPair, ...]:
    """Encode pairs that a template writes."""
    pairs: list[TokenizedPair] = []
    max_tokens = None
    if request.truncate is not None:
        max_tokens = limit if request.truncate < 0 else min(request.truncate, limit)
    fixed_sizes = {
        text: len(template.encode(_cut_text(tokenizer, text, request.max_query_tokens), "", None))
        for text in dict.fromkeys(request.queries)
        if max_tokens is not None
    }
    for index, (query, document) in enumerate(request.expand_pairs()):
        if max_tokens is not None:
            _subtract_tokens(max_tokens, fixed_sizes[query])
        ids = template.encode(
            _cut_text(tokenizer, query, request.max_query_tokens),
            _cut_text(tokenizer, document, request.max_document_tokens),
            max_tokens,
        )
        if len(ids) > limit:
            raise _build_too_long_error(limit, len(ids), "documents", index)
        pairs.append(TokenizedPair(ids, (0,) * len(ids)))
    return tuple(pairs)


def _cut_text(tokenizer: HfTokenizer, text: str, max_tokens: int | None) -> str:
    if max_tokens is None:
        return text
    ids = tokenizer.encode(text, special=False)
    return text if len(ids) <= max_tokens else tokenizer.decode(ids[:max_tokens])


def _subtract_tokens(limit: int, used: int) -> int:
    """Return the number of tokens that remain for a text. Raises RequestError if there
    are none.
    """
    if limit <= used:
        raise RequestError(
            f"truncate_prompt_tokens leaves no room for the text: {used} tokens are required "
            f"besides it.",
            param="truncate_prompt_tokens",
        )
    return limit - used


def _encode_first(tokenizer: HfTokenizer, text: str, max_tokens: int | None) -> tuple[int, ...]:
    ids = tokenizer.encode(text, special=False)
    return tuple(ids if max_tokens is None else ids[:max_tokens])


def _build_too_long_error(limit: int, tokens: int, name: str, index: int) -> ContextTooLong:
    return ContextTooLong(limit=limit, prompt=tokens, param=f"{name}[{index}]")


async def _run_encoding(encode: Callable[[], T], request: TextPairs, queue_share: QueueShare) -> T:
    """Run `encode`, in a thread unless the request's texts are short."""
    size = sum(map(len, request.queries)) + sum(map(len, request.documents))
    return encode() if size <= MAX_INLINE_INPUT_CHARS else await queue_share.run_in_thread(encode)
