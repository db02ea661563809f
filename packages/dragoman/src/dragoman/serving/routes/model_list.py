"""The list of models, as OpenAI's, Anthropic's or Google's models API."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects.gemini import GeminiModel, GeminiModelList
from ...dialects.gemini.errors import GEMINI_ERRORS
from ...dialects.model_list import (
    ModelCard,
    ModelObject,
    ModelObjectList,
    render_model,
    render_model_list,
)
from ...dialects.registry import BY_CLIENT
from ...pipeline.model_lifecycle import ModelSlot
from ...pipeline.served_model import ModelDetails
from ..api_description import response
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..responder import Responder
from ..route import Route, RouteGroup, choose_by_client
from . import gemini


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Models", BY_CLIENT)
    routes.add(
        "GET",
        "/v1/models",
        choose_by_client(GEMINI_ERRORS, gemini.list_models, list_models),
        "List the models",
        response(ModelObjectList, GeminiModelList),
        # OpenAI's clients are sometimes configured with the wrong base URL `/api/v1`,
        # which is below Ollama's `/api`.
        root="/api/v1",
    )
    routes.add(
        "GET",
        "/v1/models/{model:path}",
        choose_by_client(GEMINI_ERRORS, gemini.show_model, show_model),
        "Retrieve a model",
        response(ModelObject, GeminiModel),
        description="The name may contain slashes.",
    )
    return routes.build()


async def list_models(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(render_model_list(list_cards(http), http.service.options.profile))


def list_cards(http: HttpRequest) -> list[ModelCard]:
    # As in vLLM, each adapter is listed as a model.
    return [build_card(slot, name) for slot, name in http.service.models.list_names()]


async def show_model(http: HttpRequest) -> JsonResponse | Responder:
    name = http.path_params["model"]
    return JsonResponse(
        render_model(
            build_card(http.service.models.find_slot(name), name), http.service.options.profile
        )
    )


def build_card(slot: ModelSlot, name: str) -> ModelCard:
    """Build the card of a model; fields that are unknown until the model has been
    loaded are None.
    """
    model = slot.model
    summary = slot.summary
    root = slot.name
    if model is not None:
        adapter_path = next(
            (adapter.path for adapter in model.adapters or () if adapter.name == name), None
        )
        root = adapter_path or model.details.root or model.name
    details = ModelDetails() if summary is None else summary.details
    return ModelCard(
        id=name,
        created=slot.created,
        owned_by="dragoman" if model is None else model.details.owned_by,
        root=root,
        parent=None if name == slot.name else slot.name,
        max_model_len=None if summary is None else summary.max_model_len,
        state=slot.status,
        aliases=slot.aliases,
        capabilities=None if summary is None else summary.capabilities,
        engine=details.engine,
        family=details.family,
        format=details.format,
        quantization=details.quantization,
        revision=slot.revision,
        size=details.size,
        parameters=details.parameters,
        trained_length=details.trained_length,
        vocab_size=None if summary is None else summary.vocab_size,
        max_alternatives=None if summary is None else summary.max_alternatives,
        progress=slot.download_progress,
    )
