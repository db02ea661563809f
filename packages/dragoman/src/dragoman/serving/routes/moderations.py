"""Moderation or classification, which no engine supports: rejected with an explanation."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import NotFound
from ..auth import Access
from ..error_envelope import OPENAI
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..route import Operation, Route


def build_routes() -> Sequence[Route]:
    return (
        Route(
            "/v1/moderations",
            Access.USER,
            OPENAI,
            {"POST": Operation(refuse_moderation, "Other", "Not supported: moderation", ())},
        ),
        Route(
            "/classify",
            Access.USER,
            OPENAI,
            {
                "POST": Operation(
                    refuse_classification, "Other", "Not supported: classification", ()
                )
            },
        ),
    )


async def refuse_moderation(_: HttpRequest) -> JsonResponse:
    message = "Moderation is not supported: no engine of this server classifies texts."
    raise NotFound(message, code="unsupported_endpoint")


async def refuse_classification(_: HttpRequest) -> JsonResponse:
    message = "Classification is not supported: no engine of this server has labels."
    raise NotFound(message, code="unsupported_endpoint")
