"""Ollama's routes of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio.to_thread
from msgspec.structs import replace

from ...core.encoder_requests import Embeddings
from ...dialects.interfaces import ReaderOptions
from ...dialects.ollama import (
    OllamaEmbedCall,
    read_embed,
    read_embeddings,
    render_embed,
    render_embeddings,
)
from ...dialects.ollama.errors import OLLAMA_ERRORS
from ...dialects.ollama.response_schemas import OllamaEmbedding, OllamaEmbedResponse
from ...dialects.ollama.wire import OLLAMA_EMBED_REQUEST, OLLAMA_EMBEDDINGS_REQUEST
from ...pipeline.embedding import embed
from ..api_description import response
from ..client_warnings import collect_warnings
from ..disconnect import cancel_on_disconnect
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup
from .ollama_body import read_ollama_call
from .ollama_keep_alive import apply_keep_alive, explain_keep_alive
from .ollama_models import find_model_slot
from .ollama_timer import AnswerTimer


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Ollama", OLLAMA_ERRORS)
    routes.add(
        "POST",
        "/api/embed",
        create_embeddings,
        "Embed texts",
        response(OllamaEmbedResponse),
        bodies=(OLLAMA_EMBED_REQUEST,),
        cost=RequestCost.CALL,
    )
    routes.add(
        "POST",
        "/api/embeddings",
        create_embedding,
        "Embed a text (deprecated)",
        response(OllamaEmbedding),
        bodies=(OLLAMA_EMBEDDINGS_REQUEST,),
        cost=RequestCost.CALL,
    )
    return routes.build()


async def create_embeddings(http: HttpRequest) -> JsonResponse | Responder:
    timer = AnswerTimer(http.service.clock.monotonic, http.started_at)
    call, warnings, embeddings = await _embed(http, read_embed, timer)
    timings = timer.measure()

    def write() -> bytes:
        return render_embed(call.model, embeddings, timings.total, timings.load)

    return JsonResponse(await anyio.to_thread.run_sync(write), warnings=warnings)


async def create_embedding(http: HttpRequest) -> JsonResponse | Responder:
    timer = AnswerTimer(http.service.clock.monotonic, http.started_at)
    _, warnings, embeddings = await _embed(http, read_embeddings, timer)
    return JsonResponse(render_embeddings(embeddings), warnings=warnings)


async def _embed(
    http: HttpRequest, read: Callable[[bytes, ReaderOptions], OllamaEmbedCall], timer: AnswerTimer
) -> tuple[OllamaEmbedCall, tuple[str, ...], Embeddings | None]:
    """Return the call, the warnings, and the embeddings: None without input, which only
    loads the model.
    """
    call = await read_ollama_call(http, read)
    slot, name = find_model_slot(http.service.models, call.model)
    call_with_warnings = replace(
        call, warnings=(*call.warnings, *explain_keep_alive(http, slot, call.keep_alive))
    )
    warnings = collect_warnings(call_with_warnings, strict=http.service.options.strict)
    model = await timer.load_model(http.service.models, name)
    with model.keep_loaded():
        apply_keep_alive(http, slot, call.keep_alive)
        if not call.texts.inputs:
            return call, warnings, None
        work = embed(model, call.texts, call.dimensions, call.normalize)
        return call, warnings, await cancel_on_disconnect(http.on_disconnect, work)
