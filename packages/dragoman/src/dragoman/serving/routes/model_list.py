"""The list of models, as OpenAI's or Anthropic's models API."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects.model_list import (
    ModelCard,
    ModelObject,
    ModelObjectList,
    render_model,
    render_model_list,
)
from ...pipeline.model_lifecycle import ModelSlot
from ...pipeline.model_registry import is_name_pattern
from ...pipeline.served_model import ModelDetails
from ..api_description import response
from ..error_envelope import BY_CLIENT
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..responder import Responder
from ..route import Route, RouteGroup


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Models", BY_CLIENT)
    routes.add(
        "GET",
        "/v1/models",
        list_models,
        "List the models",
        response(ModelObjectList),
        # OpenAI's clients are sometimes configured with the wrong base URL `/api/v1`,
        # which is below Ollama's `/api`.
        root="/api/v1",
    )
    routes.add(
        "GET",
        "/v1/models/{model:path}",
        show_model,
        "Retrieve a model",
        response(ModelObject),
        description="The name may contain slashes.",
    )
    return routes.build()


async def list_models(http: HttpRequest) -> JsonResponse | Responder:
    """List names, aliases and adapters. Alias patterns are omitted, since they are not
    names of a model.
    """
    slots = http.service.models.slots
    names = [
        (slot, name)
        for slot in slots
        for name in (slot.name, *slot.aliases)
        if not is_name_pattern(name)
    ]
    slot_adapters = ((slot, slot.model.adapters) for slot in slots if slot.model is not None)
    names += [
        (slot, adapter.name) for slot, adapters in slot_adapters for adapter in adapters or ()
    ]
    # As in vLLM, each adapter is listed as a model.
    cards = [_build_card(slot, name) for slot, name in names]
    return JsonResponse(render_model_list(cards, http.service.options.profile))


async def show_model(http: HttpRequest) -> JsonResponse | Responder:
    name = http.path_params["model"]
    return JsonResponse(
        render_model(
            _build_card(http.service.models.find_slot(name), name), http.service.options.profile
        )
    )


def _build_card(slot: ModelSlot, name: str) -> ModelCard:
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
        quantization=details.quantization,
        revision=slot.revision,
        size=details.size,
        parameters=details.parameters,
        trained_length=details.trained_length,
        vocab_size=None if summary is None else summary.vocab_size,
        progress=slot.download_progress,
    )
