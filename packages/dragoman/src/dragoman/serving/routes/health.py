"""Health probes, under the paths that orchestrators or load generators use."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ..._version import VERSION
from ...dialects.ollama.response_schemas import VersionObject
from ...dialects.openai_errors import OPENAI_ERRORS
from ...pipeline.model_registry import Models
from ...store import HEALTHY
from ..api_description import ApiResponse, response
from ..auth import Access
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..public_text import hide_paths
from ..responder import Responder
from ..route import Route, RouteGroup


def build_routes() -> Sequence[Route]:
    summary = "Check whether the server is ready"
    readiness = (
        ApiResponse(media=None, description="Every engine is ready. The body is empty."),
        ApiResponse(
            (NotReady,),
            status=503,
            description="An engine is not ready, or the server is shutting down.",
        ),
    )
    routes = RouteGroup("Server", OPENAI_ERRORS, Access.PUBLIC)
    for path in ("/health", "/healthz", "/readyz"):
        routes.add("GET", path, check_health, summary, *readiness)
    routes.add(
        "GET",
        "/livez",
        live,
        "Check whether the process responds",
        ApiResponse(media=None, description="Empty."),
    )
    routes.add(("GET", "POST"), "/ping", check_health, summary, *readiness)
    routes.add("GET", "/health_generate", check_health, summary, *readiness)
    routes.add("GET", "/version", show_version, "Show the version", response(VersionObject))
    return routes.build()


class ModelFault(Struct, frozen=True):
    """A model that cannot serve requests, and the reason."""

    model: str
    reason: str | None


async def check_health(http: HttpRequest) -> JsonResponse | Responder:
    """Return 200 with an empty body if all engines and the store are ready, as vLLM
    does; otherwise 503 and the reason.

    A store that works, but has lost something, adds a warning to the 200. The probe is
    public, so it names no paths; the log does.
    """
    if http.service.models.is_closed:
        return JsonResponse(msgspec.json.encode({"reason": "the server is shutting down"}), 503)
    unready = find_unready_model(http.service.models, http.service.options.progress_timeout)
    if unready is not None:
        reason = None if unready.reason is None else hide_paths(unready.reason)
        return JsonResponse(msgspec.json.encode(ModelFault(unready.model, reason)), 503)
    store = HEALTHY if http.service.store is None else await http.service.store.check_health()
    if store.fault is not None:
        reason = f"the store is unavailable: {hide_paths(store.fault)}"
        return JsonResponse(msgspec.json.encode({"reason": reason}), 503)
    if store.warning is not None:
        return JsonResponse(msgspec.json.encode({"warning": hide_paths(store.warning)}))
    return JsonResponse(b"")


def find_unready_model(models: Models, progress_timeout: float) -> ModelFault | None:
    """Find the first model that cannot serve requests; None if all engines are ready.

    progress_timeout: seconds without progress after which an engine counts as hung, as
        in the settings.
    """
    for slot in models.slots:
        if slot.is_starting:
            return ModelFault(slot.name, f"the model is {slot.status}")
        # An engine that reports to be healthy may still compute nothing, for example if
        # its device hangs.
        if slot.stalled_for > progress_timeout:
            running = 0 if slot.model is None else slot.model.progress.running
            return ModelFault(
                slot.name,
                f"{running} requests are running, and nothing has come of them for "
                f"{slot.stalled_for:.0f} s",
            )
    for model in models:
        for engine in model.engines:
            state = engine.health()
            if not state.ready:
                return ModelFault(model.name, state.reason)
    return None


async def live(_: HttpRequest) -> JsonResponse | Responder:
    """Return 200 with an empty body as long as the process responds, also during
    shutdown (liveness).
    """
    return JsonResponse(b"")


async def show_version(http: HttpRequest) -> JsonResponse | Responder:
    """Show the version: of a simulated server the one that clients expect of it."""
    simulated = (
        model.interfaces.simulation.simulated_version
        for model in http.service.models
        if model.interfaces.simulation is not None
    )
    return JsonResponse(msgspec.json.encode({"version": next(simulated, VERSION)}))


class NotReady(Struct, frozen=True):
    """The reason why the server is not ready.

    model: the name of the model that is not ready.
    """

    reason: str
    model: str | UnsetType = UNSET
