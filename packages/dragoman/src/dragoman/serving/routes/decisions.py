"""Decisions: OpenAI's `/v1/decisions`, and `/v1/systemone` as in vLLM."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects.decisions import read_decisions, read_systemone
from ...dialects.decisions.openai_wire import DECISION_REQUEST, Decision
from ...dialects.decisions.systemone_wire import SYSTEMONE_REQUEST, SystemOneResponse
from ...dialects.openai_errors import OPENAI_ERRORS
from ..api_description import response
from ..generation_handler import build_generation_handler
from ..route import RequestCost, Route, RouteGroup


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Decisions", OPENAI_ERRORS)
    routes.add(
        "POST",
        "/v1/decisions",
        build_generation_handler(read_decisions),
        "Answer questions about an input by probabilities",
        response(Decision),
        bodies=(DECISION_REQUEST,),
        generates=True,
        cost=RequestCost.CALL,
    )
    routes.add(
        "POST",
        "/v1/systemone",
        build_generation_handler(read_systemone),
        "Answer questions about a state by probabilities",
        response(SystemOneResponse),
        bodies=(SYSTEMONE_REQUEST,),
        generates=True,
        cost=RequestCost.CALL,
    )
    return routes.build()
