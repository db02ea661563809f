"""Embedding of texts: checks the limits, tokenizes the texts, calls the model.

The texts are untrusted: names of control tokens in them are plain text.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from ..core.encoder import Embedder
from ..core.encoder_requests import (
    Embeddings,
    EmbedRequest,
    EncodingTask,
    RelevanceScores,
    TextEmbedRequest,
    TextInputs,
)
from ..core.errors import ContextTooLong, EngineError, RequestError, Unsupported
from ..core.trace_context import SpanContext
from ..prompts.hf_tokenizer import HfTokenizer
from .engine_backends import (
    EmbedderBackend,
    EventBackend,
    ScorerBackend,
    TextEncoderBackend,
    TokenBackend,
    TranscriberBackend,
)
from .engine_calls import EngineCall
from .prompt_length import check_countable
from .request_queue import ONE_QUEUE, QueueShare
from .served_model import ServedModel

MAX_INLINE_INPUT_CHARS = 2048
"""Maximum characters that are tokenized on the event loop; for so few a thread switch
costs more.
"""

_SCORES_ONLY = "This model scores pairs of texts and does not support embeddings: use /rerank."

T = TypeVar("T", Embeddings, RelevanceScores)


async def embed(
    model: ServedModel,
    texts: TextInputs,
    dimensions: int | None,
    normalize: bool | None,
    *,
    queue_share: QueueShare = ONE_QUEUE,
    trace: SpanContext | None = None,
) -> Embeddings:
    """Embed texts.

    dimensions: length of the vectors; None means the model's default.
    normalize: vectors get length 1; None means the model's default.
    queue_share: as in CallTerms.
    trace: as in GenerateRequest.

    Raises:
        RequestError: the model does not support the request.
        Overloaded: the queue is full.
    """
    if (encoder := model.text_encoder) is not None:
        if EncodingTask.EMBEDDINGS not in encoder.encoding_tasks:
            raise Unsupported(_SCORES_ONLY, param="model")
        model.queues.encoding.check_capacity(queue_share)
        text_request = TextEmbedRequest(model.name, texts, dimensions, normalize, trace)
        tokens = estimate_tokens(texts.inputs)
        return await run_in_turn(
            model, queue_share, tokens, lambda: encoder.embed_texts(text_request)
        )
    embedder, tokenizer = find_embedder(model)
    info = embedder.embedding_info
    info.check_dimensions(dimensions)
    model.queues.encoding.check_capacity(queue_share)
    if info.prompt:
        texts = _add_prompt(texts, info.prompt)
    inputs = await _encode_inputs(tokenizer, texts, info.max_tokens, queue_share)
    request = EmbedRequest(model.name, inputs, dimensions, normalize)
    return await run_in_turn(
        model, queue_share, sum(map(len, inputs)), lambda: embedder.embed(request)
    )


def _add_prompt(texts: TextInputs, prompt: str) -> TextInputs:
    """Put a prompt before every text; token ids stay as they are."""
    inputs = [prompt + text if isinstance(text, str) else text for text in texts.inputs]
    return replace(texts, inputs=tuple(inputs))


def estimate_tokens(texts: Iterable[str | tuple[int, ...]]) -> int:
    """Estimate the tokens for the queue's limit if another server tokenizes the texts:
    four characters each.
    """
    return sum(len(text) // 4 + 1 if isinstance(text, str) else len(text) for text in texts)


async def run_in_turn(
    model: ServedModel, queue_share: QueueShare, tokens: int, compute: Callable[[], Awaitable[T]]
) -> T:
    """Call an engine that embeds or scores when it is the owner's turn.

    Raises:
        EngineError: a number of the answer is not finite.
        Overloaded: the queue is full.
    """
    queued_request = model.queues.encoding.enqueue(queue_share, tokens)
    try:
        await queued_request.wait_for_turn()
        with EngineCall():
            answer = await compute()
    finally:
        queued_request.leave()
    _check_numbers(answer)
    return answer


def _check_numbers(answer: Embeddings | RelevanceScores) -> None:
    """Raise EngineError for a number that JSON cannot write, such as the overflow of a
    model in half precision.
    """
    if isinstance(answer, RelevanceScores):
        is_finite = all(map(math.isfinite, answer.scores))
    else:
        is_finite = all(map(_is_finite, answer.vectors))
    if not is_finite:
        raise EngineError("The model computed numbers that are not finite.")


def _is_finite(vector: bytes) -> bool:
    """Whether all numbers of a vector of little-endian float32 are finite."""
    # The last byte of a number has its sign and the high bits of its exponent, which are
    # all set in one that is not finite.
    high_bytes = vector[3::4]
    if b"\x7f" not in high_bytes and b"\xff" not in high_bytes:
        return True
    # A sum of float32 as doubles does not overflow, and is not finite if one is not.
    return math.isfinite(sum(struct.unpack(f"<{len(vector) // 4}f", vector)))


def find_embedder(model: ServedModel) -> tuple[Embedder, HfTokenizer]:
    """Find the model's embedder and tokenizer. Raises Unsupported if it has no
    embedder.
    """
    match model.backend:
        case EmbedderBackend(engine, tokenizer):
            return engine, tokenizer
        case TokenBackend(embedder=embedder, tokenizer=tokenizer) if embedder is not None:
            return embedder, tokenizer
        case ScorerBackend():
            raise Unsupported(_SCORES_ONLY, param="model")
        case TokenBackend() | EventBackend() | TextEncoderBackend() | TranscriberBackend():
            raise Unsupported("This model does not support embeddings.", param="model")


async def _encode_inputs(
    tokenizer: HfTokenizer, texts: TextInputs, limit: int, queue_share: QueueShare
) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of each input.

    Raises:
        ContextTooLong: an input has more than `limit` tokens.
        RequestError: an input has no tokens, or cannot be truncated.
    """
    n_chars = sum([len(text) for text in texts.inputs if isinstance(text, str)])
    if n_chars > MAX_INLINE_INPUT_CHARS:
        return await queue_share.run_in_thread(lambda: _encode_all(tokenizer, texts, limit))
    return _encode_all(tokenizer, texts, limit)


def _encode_all(
    tokenizer: HfTokenizer, texts: TextInputs, limit: int
) -> tuple[tuple[int, ...], ...]:
    return tuple(
        [_encode_input(tokenizer, texts, index, limit) for index in range(len(texts.inputs))]
    )


def _encode_input(
    tokenizer: HfTokenizer, texts: TextInputs, index: int, limit: int
) -> tuple[int, ...]:
    text = texts.inputs[index]
    wrapping = tokenizer.wrapping
    is_wrapped = isinstance(text, str) and texts.add_special_tokens
    prefix, suffix = (wrapping.prefix, wrapping.suffix) if is_wrapped else ((), ())
    param = "input" if len(texts.inputs) == 1 else f"input[{index}]"
    if texts.truncate is None and len(text) > limit * (
        tokenizer.longest_token if isinstance(text, str) else 1
    ):
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
                f"truncate_prompt_tokens must be more than the {n_special} special tokens around "
                f"a text.",
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
    """Return at most `max_ids` of the ids, from the beginning or the end."""
    if len(ids) <= max_ids:
        return tuple(ids)
    return tuple(ids[len(ids) - max_ids :] if keep_end else ids[:max_ids])
