"""How close are two texts? A cross-encoder reads both at once; of two vectors it is the cosine. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
import numpy as np

from ..core.embed import Embeddings, EmbedRequest, Pair, PairTexts, ScoreRequest, Scores
from ..core.errors import ContextTooLong, RequestError, Unsupported
from ..prompts.tokenizer import HfTokenizer
from .embedding import INLINE, cut, embedder_of
from .engine_calls import EngineCall
from .models import ScorerBackend, ServedModel

T = TypeVar("T")


async def score(model: ServedModel, asked: PairTexts) -> Scores:
    """Raises RequestError for anything that the model cannot do."""
    if isinstance(model.backend, ScorerBackend):
        return await _read_together(model.backend, model.name, asked)
    return await _compared(model, asked)


async def _read_together(backend: ScorerBackend, name: str, asked: PairTexts) -> Scores:
    limit = backend.engine.max_tokens
    pairs = await _tokenised(lambda: _pairs(backend.tokenizer, asked, limit), asked)
    with EngineCall():
        return await backend.engine.score(ScoreRequest(name, pairs, asked.activation))


async def _compared(model: ServedModel, asked: PairTexts) -> Scores:
    """Each text is read once, however many it is compared with."""
    embedder, tokenizer = embedder_of(model)
    if asked.activation is not None:
        raise Unsupported(
            "This model's scores are cosine similarities, which use no activation function.", param="use_activation"
        )
    limit = embedder.traits.max_tokens
    inputs = await _tokenised(lambda: _singles(tokenizer, asked, limit), asked)
    with EngineCall():
        made = await embedder.embed(EmbedRequest(model.name, inputs, normalize=True))
    return await anyio.to_thread.run_sync(_cosines, made, len(asked.queries))


def _cosines(made: Embeddings, queries: int) -> Scores:
    """The first so many vectors are queries."""
    vectors = np.frombuffer(b"".join(made.vectors), "<f4").reshape(-1, made.dimensions).astype(np.float64)
    products = np.vecdot(vectors[queries:], vectors[:queries])
    return Scores(tuple(products.tolist()), made.prompt_tokens)


def _singles(tokenizer: HfTokenizer, asked: PairTexts, limit: int) -> tuple[tuple[int, ...], ...]:
    frame = tokenizer.frame
    room = limit - len(frame.before) - len(frame.after)
    sides = (("query", asked.queries, asked.most_query), ("documents", asked.documents, asked.most_document))
    inputs: list[tuple[int, ...]] = []
    for name, texts, most in sides:
        for index, text in enumerate(texts):
            ids = _first(tokenizer, text, most)
            if len(ids) > room and asked.truncate is None:
                raise _too_long(limit, len(ids) + limit - room, name, index)
            keep = room if asked.truncate is None or asked.truncate < 0 else _left(asked.truncate, limit - room)
            inputs.append((*frame.before, *cut(ids, min(room, keep)), *frame.after))
    return tuple(inputs)


def _pairs(tokenizer: HfTokenizer, asked: PairTexts, limit: int) -> tuple[Pair, ...]:
    frame = tokenizer.frame
    special = len(frame.before_two) + len(frame.between) + len(frame.after_two)
    queries = {text: _first(tokenizer, text, asked.most_query) for text in dict.fromkeys(asked.queries)}
    pairs: list[Pair] = []
    for index, (query, document) in enumerate(asked.pairs()):
        first = (*frame.before_two, *queries[query], *frame.between)
        second = _first(tokenizer, document, asked.most_document)
        if asked.truncate is not None:
            whole = limit if asked.truncate < 0 else min(asked.truncate, limit)
            second = cut(second, _left(whole, special + len(queries[query])))
        elif len(first) + len(second) + len(frame.after_two) > limit:
            raise _too_long(limit, len(first) + len(second) + len(frame.after_two), "documents", index)
        pairs.append(Pair((*first, *second, *frame.after_two), len(first)))
    return tuple(pairs)


def _left(whole: int, taken: int) -> int:
    """Tokens that are left for a text. Raises RequestError where there are none."""
    if whole <= taken:
        raise RequestError(
            f"truncate_prompt_tokens leaves no room for the text: {taken} tokens are required besides it.",
            param="truncate_prompt_tokens",
        )
    return whole - taken


def _first(tokenizer: HfTokenizer, text: str, most: int | None) -> tuple[int, ...]:
    ids = tokenizer.encode(text, special=False)
    return tuple(ids if most is None else ids[:most])


def _too_long(limit: int, tokens: int, name: str, index: int) -> ContextTooLong:
    return ContextTooLong(limit=limit, prompt=tokens, param=f"{name}[{index}]")


async def _tokenised(work: Callable[[], T], asked: PairTexts) -> T:
    """Off the event loop, unless there is little to do."""
    size = sum(map(len, asked.queries)) + sum(map(len, asked.documents))
    return work() if size <= INLINE else await anyio.to_thread.run_sync(work)
