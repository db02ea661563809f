"""Google's Gemini API, below /v1beta and, where no other API has the path, below /v1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from ...dialects.gemini import (
    PREFIX,
    Framing,
    GeminiModel,
    GeminiModelList,
    build_model,
    read_batch_embed_contents,
    read_count_tokens,
    read_embed_content,
    read_generate_content,
    render_gemini_embeddings,
    render_model_page,
)
from ...dialects.gemini.errors import GEMINI_ERRORS, GeminiError
from ...dialects.gemini.response_schemas import (
    GeminiBatchEmbedResponse,
    GeminiEmbedResponse,
    GeminiResponse,
    GeminiTokenCount,
)
from ...dialects.gemini.wire import (
    GEMINI_BATCH_EMBED_REQUEST,
    GEMINI_COUNT_REQUEST,
    GEMINI_EMBED_REQUEST,
    GEMINI_REQUEST,
)
from ...pipeline.model_lifecycle import ModelSlot
from ..api_description import EVENTS, Query, response
from ..call_admission import admit_call, build_header
from ..call_reading import read_call
from ..encoding_call import embed_texts, find_model, render_in_thread_if_large
from ..generation_handler import build_responder
from ..handler_result import JsonResponse
from ..http_request import JSON_CONTENT_TYPE, HttpRequest
from ..prompt_count import count_prompt
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup

EVENT_CONTENT_TYPE = (b"content-type", b"text/event-stream")
"""Without a charset, as Google sends it: its streams carry no comments with warnings,
which its SDK would parse as data.
"""
_KEY = Query("key", str, "The API key, if no header carries it.")
_ALT = Query("alt", str, "`sse` streams events; otherwise a stream is a JSON array.")


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Gemini", GEMINI_ERRORS)
    for version in ("/v1beta", "/v1"):
        path = f"{version}/models/{{model:path}}"
        routes.add(
            "POST",
            f"{path}:generateContent",
            partial(_generate, is_stream=False),
            "Answer a conversation",
            response(GeminiResponse),
            bodies=(GEMINI_REQUEST,),
            query=(_KEY,),
            generates=True,
            cost=RequestCost.CALL,
        )
        routes.add(
            "POST",
            f"{path}:streamGenerateContent",
            partial(_generate, is_stream=True),
            "Answer a conversation as a stream",
            response(list[GeminiResponse]),
            response(GeminiResponse, GeminiError, media=EVENTS),
            bodies=(GEMINI_REQUEST,),
            query=(_ALT, _KEY),
            generates=True,
            cost=RequestCost.CALL,
        )
        routes.add(
            "POST",
            f"{path}:countTokens",
            count_tokens,
            "Count the tokens of a prompt",
            response(GeminiTokenCount),
            bodies=(GEMINI_COUNT_REQUEST,),
            query=(_KEY,),
        )
        routes.add(
            "POST",
            f"{path}:embedContent",
            partial(_embed, is_batch=False),
            "Embed a text",
            response(GeminiEmbedResponse),
            bodies=(GEMINI_EMBED_REQUEST,),
            query=(_KEY,),
            cost=RequestCost.CALL,
        )
        routes.add(
            "POST",
            f"{path}:batchEmbedContents",
            partial(_embed, is_batch=True),
            "Embed texts",
            response(GeminiBatchEmbedResponse),
            bodies=(GEMINI_BATCH_EMBED_REQUEST,),
            query=(_KEY,),
            cost=RequestCost.CALL,
        )
    routes.add(
        "GET",
        "/v1beta/models",
        list_models,
        "List the models",
        response(GeminiModelList),
        query=(
            Query("pageSize", int, "Maximum number of models per page."),
            Query("pageToken", str, "The `nextPageToken` of the previous page."),
            _KEY,
        ),
        root="/v1beta",
    )
    routes.add(
        "GET",
        "/v1beta/models/{model:path}",
        show_model,
        "Retrieve a model",
        response(GeminiModel),
        query=(_KEY,),
    )
    return routes.build()


def _read_common_query(http: HttpRequest) -> bool:
    """Read the parameters of all of Google's routes. Return whether events are wanted."""
    query = http.query
    for name in ("key", "$alt", "prettyPrint"):
        query.get(name)
    return query.get("alt") == "sse"


async def _generate(http: HttpRequest, *, is_stream: bool) -> JsonResponse | Responder:
    wants_events = _read_common_query(http)
    framing = None
    if is_stream:
        framing = Framing.EVENTS if wants_events else Framing.ARRAY
    read = partial(read_generate_content, model=http.path_params["model"], framing=framing)
    call = await read_call(http, read)
    admitted = await admit_call(http, call, build_header(http, call))
    return build_responder(
        http,
        call.writer(admitted.header),
        admitted,
        stream=call.stream,
        content_type=EVENT_CONTENT_TYPE if wants_events else JSON_CONTENT_TYPE,
    )


async def count_tokens(http: HttpRequest) -> JsonResponse | Responder:
    """Return the number of prompt tokens that the same call would have."""
    _read_common_query(http)
    call = await read_call(http, partial(read_count_tokens, model=http.path_params["model"]))
    count = await count_prompt(http, call)
    return JsonResponse(
        msgspec.json.encode(GeminiTokenCount(count.tokens)), warnings=count.warnings
    )


async def _embed(http: HttpRequest, *, is_batch: bool) -> JsonResponse | Responder:
    _read_common_query(http)
    read = read_batch_embed_contents if is_batch else read_embed_content
    call = await read_call(http, partial(read, model=http.path_params["model"]))
    model, warnings = await find_model(http, call)
    result = await embed_texts(http, model, call.texts, call.dimensions)

    def write() -> bytes:
        return render_gemini_embeddings(result, is_batch=is_batch)

    numbers = result.dimensions * len(result.vectors)
    return JsonResponse(await render_in_thread_if_large(write, numbers), warnings=warnings)


async def list_models(http: HttpRequest) -> JsonResponse | Responder:
    _read_common_query(http)
    models = [_describe(slot, name) for slot, name in http.service.models.list_names()]
    return JsonResponse(
        render_model_page(models, http.query.get("pageSize"), http.query.get("pageToken"))
    )


async def show_model(http: HttpRequest) -> JsonResponse | Responder:
    _read_common_query(http)
    name = http.path_params["model"].removeprefix(PREFIX)
    slot = http.service.models.find_slot(name)
    return JsonResponse(msgspec.json.encode(_describe(slot, name)))


def _describe(slot: ModelSlot, name: str) -> GeminiModel:
    summary = slot.summary
    if summary is None:
        return build_model(name, None, None)
    model = slot.model
    reasons = model is not None and model.capabilities.native_reasoning
    capabilities = (*summary.capabilities, *(("reasoning",) if reasons else ()))
    return build_model(name, summary.max_model_len, capabilities)
