"""Ollama's routes of models: list, show, pull."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial

import msgspec

from ...core.capabilities import Feature
from ...core.errors import ModelNotFound, NotFound, PermissionDenied, Unsupported
from ...core.model_download import ModelPuller, PullProgress
from ...core.request import Sampling
from ...dialects.field_errors import abbreviate
from ...dialects.ollama import (
    LATEST,
    LineFraming,
    OllamaModelCard,
    RunningModel,
    list_served_progress,
    read_model_reference,
    render_pull_progress,
    render_running_models,
    render_show,
    render_tags,
)
from ...dialects.ollama.errors import OLLAMA_ERRORS, OllamaError
from ...dialects.ollama.model_info import OllamaShow
from ...dialects.ollama.response_schemas import (
    OllamaProcesses,
    OllamaTags,
    VersionObject,
)
from ...dialects.ollama.wire import OLLAMA_MODEL_REQUEST
from ...pipeline.embedding import find_embedder
from ...pipeline.engine_backends import EmbedderBackend, TokenBackend
from ...pipeline.model_lifecycle import ModelSlot
from ...pipeline.model_registry import Models
from ...pipeline.served_model import ModelDetails
from ..api_description import LINES, response
from ..auth import Access
from ..client_warnings import collect_warnings
from ..generation_handler import build_stream_headers
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..replay_responder import ReplayResponder
from ..responder import Responder
from ..route import Route, RouteGroup
from .ollama_body import NDJSON, read_ollama_call
from .ollama_keep_alive import may_control_models

OLLAMA_VERSION = "0.12.11"
"""The version of Ollama whose API this is: the first with all supported fields. Some
clients require a minimum.
"""


NEVER = 292 * 365.25 * 86_400
"""Seconds until a model that is never unloaded expires: the largest duration in Go,
which Ollama reports.
"""


_CAPABILITIES = (
    ("generation", "completion"),
    (Feature.TOOLS.value, "tools"),
    ("infill", "insert"),
    (Feature.IMAGES.value, "vision"),
    ("embeddings", "embedding"),
    ("reasoning", "thinking"),
)
"""Capabilities with Ollama's names for them."""


_REFUSED = (
    (
        "DELETE",
        "/api/delete",
        "models are deleted with `dragoman rm`",
        "models are files of the operator, and are deleted there",
    ),
    (
        "POST",
        "/api/copy",
        "aliases are set in the settings",
        "an alias is set with --served-model-name",
    ),
    (
        "POST",
        "/api/create",
        "creation of models",
        "a model is configured in the settings file",
    ),
    ("POST", "/api/push", "uploads of models", "models are not uploaded anywhere"),
    ("POST", "/api/blobs/{digest}", "uploads of models", "models are not uploaded"),
)
"""Ollama's routes that are rejected: method, path, summary and the error's reason."""


def build_routes(puller: ModelPuller | None) -> Sequence[Route]:
    """Build the routes.

    puller: downloads models for /api/pull; None rejects such requests.
    """
    routes = RouteGroup("Ollama", OLLAMA_ERRORS)
    routes.add("GET", "/api/tags", list_tags, "List the models", response(OllamaTags))
    routes.add(
        "POST",
        "/api/show",
        show,
        "Show a model",
        response(OllamaShow),
        bodies=(OLLAMA_MODEL_REQUEST,),
    )
    routes.add("GET", "/api/ps", list_running, "List the loaded models", response(OllamaProcesses))
    routes.add(
        "GET",
        "/api/version",
        show_version,
        "Show the version of Ollama's API",
        response(VersionObject),
        access=Access.PUBLIC,
        root="/api",
    )
    routes.add(
        "POST",
        "/api/pull",
        partial(pull, puller=puller),
        "Download a model",
        response(PullProgress),
        response(PullProgress, OllamaError, media=LINES),
        bodies=(OLLAMA_MODEL_REQUEST,),
    )
    for method, path, summary, reason in _REFUSED:
        routes.add(
            method,
            path,
            partial(_refuse, f"{method} {path.partition('/{')[0]}", reason),
            f"Not supported: {summary}",
        )
    return routes.build()


def find_model_slot(models: Models, name: str) -> tuple[ModelSlot, str]:
    """Find a model by name, alias or adapter, with or without `:latest`; return its
    slot and the matching name.

    Raises:
        ModelNotFound: there is no such model; the message is like Ollama's.
    """
    served_names = {
        served_name for slot in models.slots for served_name in (slot.name, *slot.aliases)
    }
    matching_name = name if name in served_names else name.removesuffix(LATEST)
    try:
        return models.find_slot(matching_name), matching_name
    except ModelNotFound:
        served = ", ".join(slot.name for slot in models.slots)
        raise ModelNotFound(
            f"model {abbreviate(name)} not found, served here: {served}", param="model"
        ) from None


async def list_tags(http: HttpRequest) -> JsonResponse | Responder:
    names = http.service.models.list_names()
    return JsonResponse(render_tags([_build_card(slot, name) for slot, name in names]))


async def list_running(http: HttpRequest) -> JsonResponse | Responder:
    now = http.service.clock.now()
    loaded_slots = [slot for slot in http.service.models.slots if slot.model is not None]
    expiries = [NEVER if slot.expires_in is None else slot.expires_in for slot in loaded_slots]
    running = [
        RunningModel(_build_card(slot, slot.name), now + min(expiry, NEVER))
        for slot, expiry in zip(loaded_slots, expiries, strict=True)
    ]
    return JsonResponse(render_running_models(running))


async def show(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_ollama_call(http, read_model_reference)
    warnings = collect_warnings(call, strict=http.service.options.strict)
    slot, name = find_model_slot(http.service.models, call.model)
    return JsonResponse(render_show(_build_card(slot, name)), warnings=warnings)


async def show_version(_: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode({"version": OLLAMA_VERSION}))


async def pull(http: HttpRequest, *, puller: ModelPuller | None) -> JsonResponse | Responder:
    """Download a model and report the progress. A model that is already served counts
    as downloaded.
    """
    call = await read_ollama_call(http, read_model_reference)
    warnings = collect_warnings(call, strict=http.service.options.strict)
    reports = _find_reports(http, puller, call.model)
    if not call.stream:
        last = PullProgress("success")
        async for progress in reports:
            last = progress
        return JsonResponse(render_pull_progress(last), warnings=warnings)
    lines = (render_pull_progress(progress) async for progress in reports)
    headers = build_stream_headers(http, warnings, NDJSON)
    return ReplayResponder(
        lines, LineFraming(), http.build_response_start(headers), http.service.stream_monitor
    )


def _find_reports(
    http: HttpRequest, puller: ModelPuller | None, name: str
) -> AsyncGenerator[PullProgress]:
    """Return the progress reports of a download, or of a model that is already served.

    Raises:
        NotFound: the model is not served, and this server does not download models.
        PermissionDenied: the caller may not download models.
    """
    try:
        return _report_served(_build_card(*find_model_slot(http.service.models, name)))
    except ModelNotFound:
        pass
    if puller is None:
        raise NotFound(
            f"pull model manifest: model {abbreviate(name)} is not served here, and this server "
            f"does not download "
            "models. Download it (`dragoman pull`), and start the server with it (`dragoman serve "
            "MODEL`)."
        )
    if not may_control_models(http):
        raise PermissionDenied("Downloading a model needs an administrator's key.")
    return puller.pull(name)


async def _report_served(card: OllamaModelCard) -> AsyncGenerator[PullProgress]:
    for progress in list_served_progress(card):
        yield progress


def _build_card(slot: ModelSlot, name: str) -> OllamaModelCard:
    model = slot.model
    summary = slot.summary
    capabilities = None
    if summary is not None:
        has_native_reasoning = model is not None and model.capabilities.native_reasoning
        supported = {*summary.capabilities, *(("reasoning",) if has_native_reasoning else ())}
        capabilities = tuple(
            ollama_name for ours, ollama_name in _CAPABILITIES if ours in supported
        )
    embedding_length = None
    template = ""
    if model is not None:
        backend = model.backend
        if isinstance(backend, EmbedderBackend) or (
            isinstance(backend, TokenBackend) and backend.embedder is not None
        ):
            embedding_length = find_embedder(model)[0].embedding_info.dimensions
        if isinstance(backend, TokenBackend) and backend.renderer is not None:
            template = backend.renderer.template.source
    details = ModelDetails() if summary is None else summary.details
    return OllamaModelCard(
        name,
        slot.name,
        slot.created,
        size=details.size or (0 if slot.spec is None else slot.spec.memory),
        max_model_len=None if summary is None else summary.max_model_len,
        capabilities=capabilities,
        embedding_length=embedding_length,
        architecture=details.family or "",
        parameters=details.parameters,
        # For weights that are not quantized, Ollama shows their data type.
        quantization=details.quantization or (details.dtype or "").upper(),
        format=details.format or "",
        template=template,
        sampling=Sampling() if model is None else model.defaults.sampling,
    )


async def _refuse(operation: str, reason: str, _: HttpRequest) -> JsonResponse | Responder:
    raise Unsupported(f"{operation} is not supported: {reason}.")
