"""Routes of models that do not generate text: embeddings, reranking and scores."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

import anyio.to_thread

from ...core.errors import NotFound
from ...dialects.base import Header
from ...dialects.embeddings import (
    read_cohere_embed,
    read_embeddings,
    render_cohere_embed,
    render_embeddings,
)
from ...dialects.scoring import (
    read_rerank,
    read_score,
    render_rerank,
    render_scores,
    render_tei_rerank,
)
from ...pipeline.encoding import embed, score_pairs
from ...pipeline.engine_calls import limit_call_time
from ...pipeline.models import ServedModel
from ..auth import Access
from ..call_observer import observe_call
from ..disconnect import cancel_on_disconnect
from ..endpoint import HttpRequest, JsonResponse, OPENAI, Route
from ..generate import WarningSource, collect_warnings, find_queue_share, read_call, request_timeout
from ..streaming import Responder
from ..tenancy import EMBEDDINGS

LARGE_RESPONSE = 4096
"""Count of numbers above which a response is rendered in a thread, because it would
block the event loop.
"""


class ComputedResult(Protocol):
    """Embeddings or scores."""

    @property
    def prompt_tokens(self) -> int: ...


T = TypeVar("T", bound=ComputedResult)


def build_routes() -> Sequence[Route]:
    rerank_paths = ("/rerank", "/v1/rerank", "/v2/rerank")
    score_paths = ("/score", "/v1/score")
    return (
        Route("/v1/embeddings", Access.USER, OPENAI, {"POST": create_embeddings}),
        *(
            Route(path, Access.USER, OPENAI, {"POST": create_cohere_embeddings})
            for path in ("/v2/embed", "/cohere/v2/embed")
        ),
        Route("/pooling", Access.USER, OPENAI, {"POST": refuse_pooling}),
        *(Route(path, Access.USER, OPENAI, {"POST": rerank}) for path in rerank_paths),
        *(Route(path, Access.USER, OPENAI, {"POST": score_texts}) for path in score_paths),
    )


class InputCall(WarningSource, Protocol):
    """The common interface of the parsed bodies of these routes."""

    @property
    def model(self) -> str: ...


async def create_embeddings(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_embeddings)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        share = find_queue_share(http)
        result = await run_computation(
            http,
            model,
            embed(model, call.texts, call.dimensions, call.normalize, queue_share=share),
        )
    header = build_header(http, "embd-", model)
    profile = http.service.options.profile

    def write() -> bytes:
        return render_embeddings(result, header, profile, as_base64=call.base64)

    return JsonResponse(
        await render_in_thread_if_large(write, result.dimensions * len(result.vectors)),
        warnings=warnings,
    )


async def create_cohere_embeddings(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_cohere_embed)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        work = embed(model, call.texts, call.dimensions, None, queue_share=find_queue_share(http))
        result = await run_computation(http, model, work)
    header = build_header(http, "embd-", model)

    def write() -> bytes:
        return render_cohere_embed(result, header, call)

    numbers = len(call.types) * result.dimensions * len(result.vectors)
    return JsonResponse(await render_in_thread_if_large(write, numbers), warnings=warnings)


async def refuse_pooling(_: HttpRequest) -> JsonResponse:
    message = "Token embeddings are not supported; use /v1/embeddings for embeddings of texts."
    raise NotFound(message, code="unsupported_endpoint")


async def find_model(http: HttpRequest, call: InputCall) -> tuple[ServedModel, tuple[str, ...]]:
    """Load the model; return it with the warnings for the client.

    Raises:
        RequestError: the server is strict and there are warnings.
    """
    warnings = collect_warnings(call, strict=http.service.options.strict)
    return await http.service.models.load_and_find(call.model), warnings


def build_header(http: HttpRequest, prefix: str, model: ServedModel) -> Header:
    service = http.service
    return Header(
        service.ids.new(prefix),
        int(service.clock.now()),
        model.name,
        service.generation.fingerprint,
    )


async def run_computation(http: HttpRequest, model: ServedModel, work: Coroutine[Any, Any, T]) -> T:
    """Run an embedding or scoring; cancel it at its deadline or when the client
    disconnects.

    Its tokens are charged to the API key at the end, when their number is known.
    """
    try:
        timeout = request_timeout(http)
        observer = await observe_call(http, model.name, EMBEDDINGS)
    except BaseException:
        work.close()
        raise
    with observer or nullcontext():
        try:
            model.encoding_queue.check_capacity(find_queue_share(http))
            if (permit := http.service.generation.start_limiter.acquire()) is not None:
                await permit
        except BaseException:
            work.close()
            raise
        result = await cancel_on_disconnect(http.on_disconnect, limit_call_time(work, timeout))
        if observer is not None:
            observer.record_computation(result.prompt_tokens)
        return result


async def render_in_thread_if_large(write: Callable[[], bytes], numbers: int) -> bytes:
    return write() if numbers <= LARGE_RESPONSE else await anyio.to_thread.run_sync(write)


# Rerank and score.


async def rerank(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_rerank)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        result = await run_computation(
            http, model, score_pairs(model, call.texts, queue_share=find_queue_share(http))
        )
    documents = call.texts.documents if call.return_documents else None
    header = build_header(http, "rerank-", model)

    def write() -> bytes:
        if call.is_tei:
            return render_tei_rerank(result, documents, call.top_n)
        return render_rerank(result, header, documents, call.top_n)

    characters = 0 if documents is None else sum(map(len, documents))
    return JsonResponse(await render_in_thread_if_large(write, characters // 16), warnings=warnings)


async def score_texts(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_score)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        result = await run_computation(
            http, model, score_pairs(model, call.texts, queue_share=find_queue_share(http))
        )
    profile = http.service.options.profile
    return JsonResponse(
        render_scores(result, build_header(http, "score-", model), profile), warnings=warnings
    )
