"""The state of a running server, for administrators: its last requests without their content, and its simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ...core.control import SimulationState
from ...core.errors import NotFound
from ..admin_body import decode_body
from ..auth import Access
from ..endpoint import HttpRequest, JsonResponse, Route
from ..envelopes import OPENAI
from ..request_log import RequestLogLine
from ..streaming import Responder

MAX_WARNINGS = 8
MAX_WARNING_LENGTH = 200
"""Characters; a warning may name a field that the client has made up."""


def build_routes() -> Sequence[Route]:
    simulation = {"GET": show_simulation, "PUT": change_simulation, "POST": change_simulation}
    return (
        Route("/dragoman/requests", Access.ADMIN, OPENAI, {"GET": list_requests}),
        Route("/dragoman/simulator", Access.ADMIN, OPENAI, simulation),
    )


class RecentRequestItem(RequestLogLine, kw_only=True):
    """A line of the request log, and what was ignored of the request. It is running if it has neither `latency_s` nor
    `error`."""

    warnings: list[str]


class RecentRequestList(Struct, frozen=True):
    object: str
    data: list[RecentRequestItem]


async def list_requests(http: HttpRequest) -> JsonResponse | Responder:
    """List the last requests, the newest first: the fields of a line of the request log, and `warnings`."""
    recent_requests = http.service.generation.recent_requests
    if recent_requests is None:
        raise NotFound("The last requests are remembered only for the page (--ui).", code="unsupported_endpoint")
    data = [
        RecentRequestItem(
            **msgspec.structs.asdict(request.line),
            warnings=[warning[:MAX_WARNING_LENGTH] for warning in request.warnings[:MAX_WARNINGS]],
        )
        for request in recent_requests.iterate_newest_first()
    ]
    return JsonResponse(msgspec.json.encode(RecentRequestList("list", data)))


class SimulatedModel(SimulationState, frozen=True, kw_only=True):
    model: str


class SimulatedModelList(Struct, frozen=True):
    object: str
    data: list[SimulatedModel]


async def show_simulation(http: HttpRequest) -> JsonResponse | Responder:
    """List the simulated models; there may be none."""
    data = [
        SimulatedModel(**msgspec.structs.asdict(model.simulation.get_simulation()), model=model.name)
        for model in http.service.models
        if model.simulation is not None
    ]
    return JsonResponse(msgspec.json.encode(SimulatedModelList("list", data)))


class SimulationChange(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of the speed of simulated time.

    time_scale: 10 is ten times as fast.
    model: None is every simulated one.
    """

    time_scale: Annotated[float, Meta(ge=0.001, le=1_000_000)]
    model: str | None = None


async def change_simulation(http: HttpRequest) -> JsonResponse | Responder:
    change = await decode_body(http, SimulationChange)
    models = list(http.service.models) if change.model is None else [http.service.models.find_loaded(change.model)]
    simulations = [model.simulation for model in models if model.simulation is not None]
    if not simulations:
        raise NotFound("No model of this server is simulated.", code="unsupported_endpoint")
    for simulation in simulations:
        simulation.set_time_scale(change.time_scale)
    return await show_simulation(http)
