"""Embedding, rerank and score routes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import anyio.to_thread

from ...core.errors import NotFound
from ...dialects.base import Header
from ...dialects.embeddings import read_embeddings, render_embeddings
from ...dialects.scoring import read_rerank, read_score, render_rerank, render_scores
from ...pipeline.embedding import embed
from ...pipeline.engine_calls import limit_call_time
from ...pipeline.models import ServedModel
from ...pipeline.scoring import score_pairs
from ..auth import Access
from ..disconnect import cancel_on_disconnect
from ..endpoint import Handler, HttpRequest, JsonResponse
from ..generate import WarningSource, collect_warnings, find_queue_owner, read_call, request_timeout
from ..streaming import Responder

LARGE_RESPONSE = 4096
"""Numbers above which a response is rendered in a thread, so that it does not block the event loop."""


T = TypeVar("T")


class InputCall(WarningSource, Protocol):
    """The common interface of these routes' parsed bodies."""

    @property
    def model(self) -> str: ...


async def create_embeddings(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_embeddings)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        owner = find_queue_owner(http)
        result = await _run(http, model, embed(model, call.texts, call.dimensions, call.normalize, queue_owner=owner))
    header, profile = build_header(http, "embd-", model), http.service.options.profile

    def write() -> bytes:
        return render_embeddings(result, header, profile, as_base64=call.base64)

    return JsonResponse(
        await _run_in_thread_if_large(write, result.dimensions * len(result.vectors)), warnings=warnings
    )


async def rerank(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_rerank)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        result = await _run(http, model, score_pairs(model, call.texts, queue_owner=find_queue_owner(http)))
    documents = call.texts.documents if call.return_documents else None
    header = build_header(http, "rerank-", model)

    def write() -> bytes:
        return render_rerank(result, header, documents, call.top_n)

    characters = 0 if documents is None else sum(map(len, documents))
    return JsonResponse(await _run_in_thread_if_large(write, characters // 16), warnings=warnings)


async def score_texts(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_score)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        result = await _run(http, model, score_pairs(model, call.texts, queue_owner=find_queue_owner(http)))
    profile = http.service.options.profile
    return JsonResponse(render_scores(result, build_header(http, "score-", model), profile), warnings=warnings)


def build_unsupported_handler(reason: str) -> Handler:
    """Build the handler of a route that no engine here supports: an error is better than an invented result."""

    async def raise_not_found(_: HttpRequest) -> JsonResponse | Responder:
        raise NotFound(reason, code="unsupported_endpoint")

    return raise_not_found


def build_routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    """All embedding, rerank and score routes, for the table in `app.build_routes`."""
    rerank_handlers, score_handlers = {"POST": rerank}, {"POST": score_texts}
    table: Mapping[str, Mapping[str, Handler]] = {
        "/v1/embeddings": {"POST": create_embeddings},
        "/rerank": rerank_handlers,
        "/v1/rerank": rerank_handlers,
        "/v2/rerank": rerank_handlers,
        "/score": score_handlers,
        "/v1/score": score_handlers,
        "/v1/moderations": {
            "POST": build_unsupported_handler("Moderation is not supported: no engine of this server classifies texts.")
        },
        "/classify": {
            "POST": build_unsupported_handler("Classification is not supported: no engine of this server has labels.")
        },
        "/pooling": {
            "POST": build_unsupported_handler(
                "Token embeddings are not supported; use /v1/embeddings for embeddings of texts."
            )
        },
    }
    return {path: (Access.USER, handlers) for path, handlers in table.items()}


async def find_model(http: HttpRequest, call: InputCall) -> tuple[ServedModel, tuple[str, ...]]:
    """Return the model and the warnings.

    Raises:
        RequestError: the server is strict and there are warnings.
    """
    warnings = collect_warnings(call, strict=http.service.options.strict)
    return await http.service.models.load_and_find(call.model), warnings


def build_header(http: HttpRequest, prefix: str, model: ServedModel) -> Header:
    service = http.service
    return Header(service.ids.new(prefix), int(service.clock.now()), model.name, service.fingerprint)


async def _run(http: HttpRequest, model: ServedModel, work: Coroutine[Any, Any, T]) -> T:
    """Run a computation until its deadline, or until the client disconnects."""
    try:
        timeout = request_timeout(http)
        model.encoding_queue.check_capacity(find_queue_owner(http))
        await http.service.start_limiter.acquire()
    except BaseException:
        work.close()
        raise
    return await cancel_on_disconnect(http.on_disconnect, limit_call_time(work, timeout))


async def _run_in_thread_if_large(write: Callable[[], bytes], numbers: int) -> bytes:
    return write() if numbers <= LARGE_RESPONSE else await anyio.to_thread.run_sync(write)
