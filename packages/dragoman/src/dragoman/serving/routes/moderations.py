"""Moderation or classification, which no engine supports: rejected with an explanation."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import NotFound
from ...dialects.openai_errors import OPENAI_ERRORS
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..route import Route, RouteGroup


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Other", OPENAI_ERRORS)
    routes.add("POST", "/v1/moderations", refuse_moderation, "Not supported: moderation")
    routes.add("POST", "/classify", refuse_classification, "Not supported: classification")
    return routes.build()


async def refuse_moderation(_: HttpRequest) -> JsonResponse:
    message = "Moderation is not supported: no engine of this server classifies texts."
    raise NotFound(message, code="unsupported_endpoint")


async def refuse_classification(_: HttpRequest) -> JsonResponse:
    message = "Classification is not supported: no engine of this server has labels."
    raise NotFound(message, code="unsupported_endpoint")
