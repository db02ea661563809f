"""Handlers of the routes that read texts and generate none: vectors and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import anyio.to_thread

from ..core.errors import NotFound
from ..dialects.base import Header
from ..dialects.embeddings import embeddings_answer, read_embeddings
from ..dialects.scoring import read_rerank, read_score, rerank_answer, score_answer
from ..pipeline.embedding import embed
from ..pipeline.models import ServedModel
from ..pipeline.scoring import score
from .answer import Answer
from .auth import Access
from .endpoint import Handler, Http, Whole
from .generate import Ignoring, read_call, what_is_ignored
from .leaving import unless_gone

LARGE_ANSWER = 4096
"""Numbers from which an answer is written in a thread, so that others do not wait for it."""


class ReadingCall(Ignoring, Protocol):
    """What the readers of all these routes make."""

    @property
    def model(self) -> str: ...


async def embeddings(http: Http) -> Whole | Answer:
    call = await read_call(http, read_embeddings)
    model, warnings = await admitted(http, call)
    with model.held():
        made = await unless_gone(http.watch, embed(model, call.texts, call.dimensions, call.normalize))
    header, profile = new_header(http, "embd-", model), http.service.options.profile

    def write() -> bytes:
        return embeddings_answer(made, header, profile, as_base64=call.base64)

    return Whole(await _written(write, made.dimensions * len(made.vectors)), warnings=warnings)


async def rerank(http: Http) -> Whole | Answer:
    call = await read_call(http, read_rerank)
    model, warnings = await admitted(http, call)
    with model.held():
        made = await unless_gone(http.watch, score(model, call.texts))
    documents = call.texts.documents if call.return_documents else None
    header = new_header(http, "rerank-", model)

    def write() -> bytes:
        return rerank_answer(made, header, documents, call.top_n)

    characters = 0 if documents is None else sum(map(len, documents))
    return Whole(await _written(write, characters // 16), warnings=warnings)


async def scores(http: Http) -> Whole | Answer:
    call = await read_call(http, read_score)
    model, warnings = await admitted(http, call)
    with model.held():
        made = await unless_gone(http.watch, score(model, call.texts))
    profile = http.service.options.profile
    return Whole(score_answer(made, new_header(http, "score-", model), profile), warnings=warnings)


def refusing(why: str) -> Handler:
    """Of a route that clients know and nothing here can serve: an invented answer would be worse than none."""

    async def refuse(_: Http) -> Whole | Answer:
        raise NotFound(why, code="unsupported_endpoint")

    return refuse


def routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    """Every route that reads texts, as `app.routes` has them."""
    reranking, scoring = {"POST": rerank}, {"POST": scores}
    table: Mapping[str, Mapping[str, Handler]] = {
        "/v1/embeddings": {"POST": embeddings},
        "/rerank": reranking,
        "/v1/rerank": reranking,
        "/v2/rerank": reranking,
        "/score": scoring,
        "/v1/score": scoring,
        "/v1/moderations": {
            "POST": refusing("Moderation is not supported: no engine of this server classifies texts.")
        },
        "/classify": {"POST": refusing("Classification is not supported: no engine of this server has labels.")},
        "/pooling": {
            "POST": refusing("Token embeddings are not supported; use /v1/embeddings for embeddings of texts.")
        },
    }
    return {path: (Access.USER, handlers) for path, handlers in table.items()}


async def admitted(http: Http, call: ReadingCall) -> tuple[ServedModel, tuple[str, ...]]:
    """The model, and all that is ignored. Raises RequestError under `strict` where anything is."""
    ignored = what_is_ignored(call, strict=http.service.options.strict)
    return await http.service.models.ready(call.model), ignored


def new_header(http: Http, prefix: str, model: ServedModel) -> Header:
    service = http.service
    return Header(service.ids.new(prefix), int(service.clock.now()), model.name, service.fingerprint)


async def _written(write: Callable[[], bytes], numbers: int) -> bytes:
    return write() if numbers <= LARGE_ANSWER else await anyio.to_thread.run_sync(write)
