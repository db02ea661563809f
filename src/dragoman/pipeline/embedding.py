"""From texts to vectors, on any model that makes some: tokens, bounds, and the embedder. Knows no HTTP.

A text is what its author wrote: names of control tokens in it are text.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio.to_thread

from ..core.embed import Embeddings, EmbedRequest, Texts
from ..core.engine import Embedder
from ..core.errors import ContextTooLong, RequestError, Unsupported
from ..prompts.tokenizer import HfTokenizer
from .engine_calls import EngineCall
from .models import EmbedderBackend, EventBackend, ScorerBackend, ServedModel, TokenBackend

INLINE = 2048
"""Characters up to which tokenising is done on the loop: a thread's hop costs more than that."""


async def embed(model: ServedModel, texts: Texts, dimensions: int | None, normalize: bool | None) -> Embeddings:
    """normalize: None is the model's own way. Raises RequestError for anything that the model cannot do."""
    embedder, tokenizer = embedder_of(model)
    embedder.traits.check(dimensions)
    inputs = await tokenised(tokenizer, texts, embedder.traits.max_tokens)
    with EngineCall():
        return await embedder.embed(EmbedRequest(model.name, inputs, dimensions, normalize))


def embedder_of(model: ServedModel) -> tuple[Embedder, HfTokenizer]:
    """Raises Unsupported where a model makes no vectors."""
    match model.backend:
        case EmbedderBackend(engine, tokenizer):
            return engine, tokenizer
        case TokenBackend(embedder=embedder, tokenizer=tokenizer) if embedder is not None:
            return embedder, tokenizer
        case ScorerBackend():
            raise Unsupported(
                "This model scores pairs of texts and does not support embeddings: use /rerank.", param="model"
            )
        case TokenBackend() | EventBackend():
            raise Unsupported("This model does not support embeddings.", param="model")


def does_not_generate(backend: EmbedderBackend | ScorerBackend) -> Unsupported:
    route = "/v1/embeddings" if isinstance(backend, EmbedderBackend) else "/rerank or /score"
    return Unsupported(f"This model does not generate text: use {route}.", param="model")


async def tokenised(tokenizer: HfTokenizer, texts: Texts, limit: int) -> tuple[tuple[int, ...], ...]:
    """Token ids of each input, at most `limit`. Raises ContextTooLong, RequestError for an input without tokens."""
    size = sum(len(text) for text in texts.inputs if isinstance(text, str))

    def work() -> tuple[tuple[int, ...], ...]:
        return tuple(_ids(tokenizer, texts, index, limit) for index in range(len(texts.inputs)))

    return work() if size <= INLINE else await anyio.to_thread.run_sync(work)


def _ids(tokenizer: HfTokenizer, texts: Texts, index: int, limit: int) -> tuple[int, ...]:
    text, frame = texts.inputs[index], tokenizer.frame
    framed = isinstance(text, str) and texts.add_special_tokens
    before, after = (frame.before, frame.after) if framed else ((), ())
    param = "input" if len(texts.inputs) == 1 else f"input[{index}]"
    if texts.truncate is None and len(text) > limit * (tokenizer.longest_token if isinstance(text, str) else 1):
        least = -(-len(text) // tokenizer.longest_token) if isinstance(text, str) else len(text)
        raise ContextTooLong(limit=limit, prompt=least, at_least=True, param=param)
    inner = tuple(tokenizer.encode(text, special=False)) if isinstance(text, str) else text
    around = len(before) + len(after)
    if texts.truncate is not None:
        keep = limit if texts.truncate < 0 else min(texts.truncate, limit)
        if keep <= around:
            raise RequestError(
                f"truncate_prompt_tokens must be more than the {around} special tokens around a text.",
                param="truncate_prompt_tokens",
            )
        inner = cut(inner, keep - around, keep_end=texts.keep_end)
    elif len(inner) + around > limit:
        raise ContextTooLong(limit=limit, prompt=len(inner) + around, param=param)
    ids = (*before, *inner, *after)
    if not ids:
        raise RequestError("The input is empty: it has no tokens.", param=param)
    return ids


def cut(ids: Sequence[int], most: int, *, keep_end: bool = False) -> tuple[int, ...]:
    """At most so many of them, of the beginning or of the end."""
    if len(ids) <= most:
        return tuple(ids)
    return tuple(ids[len(ids) - most :] if keep_end else ids[:most])
