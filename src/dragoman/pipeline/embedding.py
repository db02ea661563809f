"""Computes embeddings of texts on any model that has an embedder: tokenisation, limits, then the model. Knows no HTTP.

The texts are untrusted: names of control tokens in them are plain text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import anyio.to_thread

from ..core.embeddings import Embeddings, EmbedRequest, EncodingTask, TextEmbedRequest, TextInputs
from ..core.engine import Embedder, TextEncoder
from ..core.errors import ContextTooLong, RequestError, Unsupported
from ..prompts.tokenizer import HfTokenizer
from .admission import check_countable
from .engine_calls import EngineCall
from .models import EmbedderBackend, EventBackend, ScorerBackend, ServedModel, TextEncoderBackend, TokenBackend
from .request_queue import ONE_QUEUE, QueueShare
from .served_model import EncoderBackend

MAX_INLINE_CHARS = 2048
"""Longest text, in characters, that is tokenised on the event loop: for these a thread switch costs more."""

_SCORES_ONLY = "This model scores pairs of texts and does not support embeddings: use /rerank."

T = TypeVar("T")


async def embed(
    model: ServedModel,
    texts: TextInputs,
    dimensions: int | None,
    normalize: bool | None,
    *,
    queue_share: QueueShare = ONE_QUEUE,
) -> Embeddings:
    """Embed texts.

    normalize: None is the model's default.
    queue_share: as in CallTerms.

    Raises:
        RequestError: the model does not support the request.
        Overloaded: the queue is full.
    """
    if (encoder := model.text_encoder) is not None:
        remote_request = TextEmbedRequest(model.name, texts, dimensions, normalize)
        return await _embed_elsewhere(model, encoder, remote_request, queue_share)
    embedder, tokenizer = find_embedder(model)
    embedder.embedding_info.check_dimensions(dimensions)
    model.encoding_queue.check_capacity(queue_share)
    inputs = await encode_inputs(tokenizer, texts, embedder.embedding_info.max_tokens)
    request = EmbedRequest(model.name, inputs, dimensions, normalize)
    return await run_in_turn(model, queue_share, sum(map(len, inputs)), lambda: embedder.embed(request))


async def _embed_elsewhere(
    model: ServedModel, encoder: TextEncoder, request: TextEmbedRequest, queue_share: QueueShare
) -> Embeddings:
    if EncodingTask.EMBEDDINGS not in encoder.encoding_tasks:
        raise Unsupported(_SCORES_ONLY, param="model")
    model.encoding_queue.check_capacity(queue_share)
    tokens = estimate_tokens(request.texts.inputs)
    return await run_in_turn(model, queue_share, tokens, lambda: encoder.embed_texts(request))


def estimate_tokens(texts: Iterable[str | tuple[int, ...]]) -> int:
    """A guess for the queue's limit, where another server tokenizes the texts: four characters a token."""
    return sum(len(text) // 4 + 1 if isinstance(text, str) else len(text) for text in texts)


async def run_in_turn(
    model: ServedModel, queue_share: QueueShare, tokens: int, compute: Callable[[], Awaitable[T]]
) -> T:
    """Call an engine that embeds or scores when it is the owner's turn. Raises Overloaded where the queue is full."""
    place = model.encoding_queue.enqueue(queue_share, tokens)
    try:
        await place.wait_for_turn()
        with EngineCall():
            return await compute()
    finally:
        place.leave()


def find_embedder(model: ServedModel) -> tuple[Embedder, HfTokenizer]:
    """Find the model's embedder and tokenizer. Raises Unsupported where it has no embedder."""
    match model.backend:
        case EmbedderBackend(engine, tokenizer):
            return engine, tokenizer
        case TokenBackend(embedder=embedder, tokenizer=tokenizer) if embedder is not None:
            return embedder, tokenizer
        case ScorerBackend():
            raise Unsupported(_SCORES_ONLY, param="model")
        case TokenBackend() | EventBackend() | TextEncoderBackend():
            raise Unsupported("This model does not support embeddings.", param="model")


def build_no_generation_error(backend: EncoderBackend) -> Unsupported:
    match backend:
        case EmbedderBackend():
            embeds = True
        case ScorerBackend():
            embeds = False
        case TextEncoderBackend(engine):
            embeds = EncodingTask.EMBEDDINGS in engine.encoding_tasks
    route = "/v1/embeddings" if embeds else "/rerank or /score"
    return Unsupported(f"This model does not generate text: use {route}.", param="model")


async def encode_inputs(tokenizer: HfTokenizer, texts: TextInputs, limit: int) -> tuple[tuple[int, ...], ...]:
    """Token ids of each input, at most `limit`. Raises ContextTooLong, or RequestError for an input without tokens."""
    text_length = sum(len(text) for text in texts.inputs if isinstance(text, str))

    def work() -> tuple[tuple[int, ...], ...]:
        return tuple(_encode_input(tokenizer, texts, index, limit) for index in range(len(texts.inputs)))

    return work() if text_length <= MAX_INLINE_CHARS else await anyio.to_thread.run_sync(work)


def _encode_input(tokenizer: HfTokenizer, texts: TextInputs, index: int, limit: int) -> tuple[int, ...]:
    text, wrapping = texts.inputs[index], tokenizer.wrapping
    is_wrapped = isinstance(text, str) and texts.add_special_tokens
    prefix, suffix = (wrapping.prefix, wrapping.suffix) if is_wrapped else ((), ())
    param = "input" if len(texts.inputs) == 1 else f"input[{index}]"
    if texts.truncate is None and len(text) > limit * (tokenizer.longest_token if isinstance(text, str) else 1):
        least = -(-len(text) // tokenizer.longest_token) if isinstance(text, str) else len(text)
        raise ContextTooLong(limit=limit, prompt=least, at_least=True, param=param)
    if texts.truncate is not None and isinstance(text, str):
        check_countable(text, limit, tokenizer.longest_token, verb="truncated", param=param)
    text_ids = tuple(tokenizer.encode(text, special=False)) if isinstance(text, str) else text
    n_special = len(prefix) + len(suffix)
    if texts.truncate is not None:
        max_ids = limit if texts.truncate < 0 else min(texts.truncate, limit)
        if max_ids <= n_special:
            raise RequestError(
                f"truncate_prompt_tokens must be more than the {n_special} special tokens around a text.",
                param="truncate_prompt_tokens",
            )
        text_ids = truncate_ids(text_ids, max_ids - n_special, keep_end=texts.keep_end)
    elif len(text_ids) + n_special > limit:
        raise ContextTooLong(limit=limit, prompt=len(text_ids) + n_special, param=param)
    ids = (*prefix, *text_ids, *suffix)
    if not ids:
        raise RequestError("The input is empty: it has no tokens.", param=param)
    return ids


def truncate_ids(ids: Sequence[int], max_ids: int, *, keep_end: bool = False) -> tuple[int, ...]:
    """At most `max_ids` of the ids, from the beginning or the end."""
    if len(ids) <= max_ids:
        return tuple(ids)
    return tuple(ids[len(ids) - max_ids :] if keep_end else ids[:max_ids])
