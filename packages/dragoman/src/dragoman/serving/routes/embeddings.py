"""Routes of embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import NotFound
from ...dialects.cohere_embed import (
    COHERE_REQUEST,
    CohereEmbedResponse,
    read_cohere_embed,
    render_cohere_embed,
)
from ...dialects.openai_embeddings import (
    EMBEDDING_REQUEST,
    EmbeddingsResponse,
    read_embeddings,
    render_embeddings,
)
from ...dialects.openai_errors import OPENAI_ERRORS
from ..api_description import response
from ..call_reading import read_call
from ..encoding_call import (
    build_result_header,
    embed_texts,
    find_model,
    render_in_thread_if_large,
)
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Embeddings", OPENAI_ERRORS)
    routes.add(
        "POST",
        "/v1/embeddings",
        create_embeddings,
        "Embed texts",
        response(EmbeddingsResponse),
        bodies=(EMBEDDING_REQUEST,),
        cost=RequestCost.CALL,
    )
    for path in ("/v2/embed", "/cohere/v2/embed"):
        routes.add(
            "POST",
            path,
            create_cohere_embeddings,
            "Embed texts, as in Cohere's API",
            response(CohereEmbedResponse),
            bodies=(COHERE_REQUEST,),
            cost=RequestCost.CALL,
        )
    routes.add("POST", "/pooling", refuse_pooling, "Not supported: token embeddings")
    return routes.build()


async def create_embeddings(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_embeddings)
    model, warnings = await find_model(http, call)
    result = await embed_texts(http, model, call.texts, call.dimensions, call.normalize)
    header = build_result_header(http, "embd-", model)
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
    result = await embed_texts(http, model, call.texts, call.dimensions)
    header = build_result_header(http, "embd-", model)

    def write() -> bytes:
        return render_cohere_embed(result, header, call)

    numbers = len(call.types) * result.dimensions * len(result.vectors)
    return JsonResponse(await render_in_thread_if_large(write, numbers), warnings=warnings)


async def refuse_pooling(_: HttpRequest) -> JsonResponse:
    message = "Token embeddings are not supported; use /v1/embeddings for embeddings of texts."
    raise NotFound(message, code="unsupported_endpoint")
