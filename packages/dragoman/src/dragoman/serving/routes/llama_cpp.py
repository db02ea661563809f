"""llama.cpp's own routes, and the lists of models of LM Studio, which is built on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ..._version import VERSION
from ...core.capabilities import Feature
from ...core.errors import Overloaded, Unsupported
from ...core.request import Conversation
from ...dialects.chat import read_chat
from ...dialects.chat.wire import CHAT_REQUEST
from ...dialects.llama_cpp import read_completion, read_infill
from ...dialects.llama_cpp.server_info import (
    LlamaCppModalities,
    LlamaCppPrompt,
    LlamaCppProps,
    LlamaCppSlot,
    build_defaults,
    render_slots,
)
from ...dialects.llama_cpp.wire import COMPLETION_REQUEST, INFILL_REQUEST
from ...dialects.llama_cpp.writer import LlamaCppChunk, LlamaCppResponse
from ...dialects.lm_studio import (
    StudioModel,
    StudioModelList,
    StudioModelListV1,
    render_studio_model,
    render_studio_models,
    render_studio_models_v1,
)
from ...dialects.openai_errors import OPENAI_ERRORS, OpenAIErrorBody
from ...pipeline.engine_backends import TokenBackend
from ...pipeline.prompt_encoding import render_conversation
from ...prompts.tokenizer_info import TokenizerInfo
from ..api_description import EVENTS, MODEL, Query, response
from ..auth import Access
from ..call_reading import read_call
from ..client_warnings import collect_warnings
from ..disconnect import cancel_on_disconnect
from ..generation_handler import build_generation_handler
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..queried_model import find_queried_model
from ..request_context import build_owner_files
from ..request_terms import build_terms
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup
from .model_list import build_card, list_cards

_NO_SLOT = Query("fail_on_no_slot", Literal["0", "1"], "Answer 503 while requests wait.")


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("llama.cpp", OPENAI_ERRORS)
    for path, handler, summary, body in (
        (
            "/completion",
            build_generation_handler(read_completion),
            "Continue a text in the format of llama.cpp",
            COMPLETION_REQUEST,
        ),
        (
            "/infill",
            build_generation_handler(read_infill),
            "Write the text between a prefix and a suffix in the format of llama.cpp",
            INFILL_REQUEST,
        ),
    ):
        routes.add(
            "POST",
            path,
            handler,
            summary,
            response(LlamaCppResponse),
            response(LlamaCppChunk, LlamaCppResponse, OpenAIErrorBody, media=EVENTS),
            bodies=(body,),
            generates=True,
            cost=RequestCost.CALL,
        )
    routes.add(
        "POST",
        "/apply-template",
        apply_template,
        "Render a conversation with the model's chat template",
        response(LlamaCppPrompt),
        bodies=(CHAT_REQUEST,),
    )
    routes.add(
        "GET",
        "/props",
        show_props,
        "Show the context length, the defaults and the chat template of a model",
        response(LlamaCppProps),
        query=(MODEL,),
    )
    routes.add(
        "GET",
        "/slots",
        list_slots,
        "List the running requests of a model",
        response(list[LlamaCppSlot]),
        query=(MODEL, _NO_SLOT),
        access=Access.ADMIN,
    )
    routes.add(
        "GET",
        "/api/v0/models",
        list_studio_models,
        "List the models in the format of LM Studio",
        response(StudioModelList),
        root="/api/v0",
    )
    routes.add(
        "GET",
        "/api/v0/models/{model:path}",
        show_studio_model,
        "Show a model in the format of LM Studio",
        response(StudioModel),
    )
    routes.add(
        "GET",
        "/api/v1/models",
        list_studio_models_v1,
        "List the models in the format of LM Studio's API of version 1",
        response(StudioModelListV1),
    )
    return routes.build()


async def show_props(http: HttpRequest) -> JsonResponse | Responder:
    model = await find_queried_model(http)
    features = model.capabilities.features
    info = model.tokenizer_info or TokenizerInfo("")
    props = LlamaCppProps(
        build_defaults(model.max_model_len, model.defaults.sampling, model.defaults.max_new_tokens),
        model.name,
        model.name,
        info.chat_template or "",
        info.bos_token or "",
        info.eos_token or "",
        LlamaCppModalities(Feature.IMAGES in features, Feature.AUDIO in features),
        f"dragoman-{VERSION}",
    )
    return JsonResponse(msgspec.json.encode(props))


async def list_slots(http: HttpRequest) -> JsonResponse | Responder:
    """List a slot for each running request of this process, and an idle one.

    Raises:
        Overloaded: requests wait, and the query asks for an error then.
    """
    model = await find_queried_model(http)
    queue = model.queues.generation
    if http.query.get("fail_on_no_slot") == "1" and queue.n_held:
        raise Overloaded("No slot is available: requests are waiting; retry later.")
    return JsonResponse(render_slots(queue.n_running, model.max_model_len))


async def apply_template(http: HttpRequest) -> JsonResponse | Responder:
    """Render a Chat body's conversation, without generating."""
    call = await read_call(http, read_chat)
    warnings = collect_warnings(call, strict=http.service.options.strict)
    request = call.requests[0]
    assert isinstance(request.prompt, Conversation), "Chat reads conversations"
    model = await http.service.models.load_and_find(request.model)
    backend = model.backend
    if not isinstance(backend, TokenBackend):
        raise Unsupported("This model's engine does not render conversations.", param="model")
    with model.keep_loaded():
        conversation = await http.service.generation.media.resolve_conversation(
            build_owner_files(http), model, request.prompt
        )
        rendering = render_conversation(backend, conversation, build_terms(http, http.id))
        rendered, _ = await cancel_on_disconnect(http.on_disconnect, rendering)
    return JsonResponse(msgspec.json.encode(LlamaCppPrompt(rendered.text)), warnings=warnings)


async def list_studio_models(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(render_studio_models(list_cards(http)))


async def show_studio_model(http: HttpRequest) -> JsonResponse | Responder:
    name = http.path_params["model"]
    return JsonResponse(render_studio_model(build_card(http.service.models.find_slot(name), name)))


async def list_studio_models_v1(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(render_studio_models_v1(list_cards(http)))
