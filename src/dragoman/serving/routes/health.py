"""Health probes under the paths that orchestrators, routers and load generators use, and the version."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ... import __version__
from ..auth import Access
from ..endpoint import HttpRequest, JsonResponse, Route
from ..envelopes import OPENAI
from ..streaming import Responder


def build_routes() -> Sequence[Route]:
    public = Access.PUBLIC
    return (
        *(Route(path, public, OPENAI, {"GET": check_health}) for path in ("/health", "/healthz", "/readyz")),
        Route("/livez", public, OPENAI, {"GET": live}),
        Route("/ping", public, OPENAI, {"GET": check_health, "POST": check_health}),
        Route("/health_generate", public, OPENAI, {"GET": check_health}),
        Route("/version", public, OPENAI, {"GET": show_version}),
    )


async def check_health(http: HttpRequest) -> JsonResponse | Responder:
    """Return 200 with an empty body if all engines are ready, as vLLM does; otherwise 503 and the reason."""
    if http.service.models.is_closed:
        return JsonResponse(msgspec.json.encode({"reason": "the server is shutting down"}), 503)
    limit = http.service.options.progress_timeout
    # An engine can hang without dying: requests run, and no event comes.
    for slot in http.service.models.slots:
        if slot.is_starting:
            return JsonResponse(msgspec.json.encode({"model": slot.name, "reason": f"the model is {slot.status}"}), 503)
        if slot.stalled_for > limit:
            running = 0 if slot.model is None else slot.model.progress.running
            reason = f"{running} requests are running, and nothing has come of them for {slot.stalled_for:.0f} s"
            return JsonResponse(msgspec.json.encode({"model": slot.name, "reason": reason}), 503)
    for model in http.service.models:
        for engine in model.engines:
            state = engine.health()
            if not state.ready:
                return JsonResponse(msgspec.json.encode({"model": model.name, "reason": state.reason}), 503)
    return JsonResponse(b"")


async def live(_: HttpRequest) -> JsonResponse | Responder:
    """Liveness: 200 with an empty body as long as the process responds, also during shutdown."""
    return JsonResponse(b"")


async def show_version(_: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode({"version": __version__}))
