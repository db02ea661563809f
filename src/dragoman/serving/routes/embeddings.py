"""Embeddings, and what the routes of embedding models share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import anyio.to_thread

from ...core.errors import NotFound
from ...dialects.base import Header
from ...dialects.embeddings import read_embeddings, render_embeddings
from ...pipeline.embedding import embed
from ...pipeline.models import ServedModel
from ..auth import Access
from ..disconnect import cancel_on_disconnect
from ..endpoint import HttpRequest, JsonResponse, Route
from ..envelopes import OPENAI
from ..generate import WarningSource, collect_warnings, read_call
from ..streaming import Responder

LARGE_RESPONSE = 4096
"""Numbers above which a response is rendered in a thread, so that it does not block the event loop."""


def build_routes() -> Sequence[Route]:
    return (
        Route("/v1/embeddings", Access.USER, OPENAI, {"POST": create_embeddings}),
        Route("/pooling", Access.USER, OPENAI, {"POST": refuse_pooling}),
    )


class InputCall(WarningSource, Protocol):
    """The common interface of these routes' parsed bodies."""

    @property
    def model(self) -> str: ...


async def create_embeddings(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_embeddings)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        # An embedding is one computation without events, so only this can stop it.
        result = await cancel_on_disconnect(
            http.on_disconnect, embed(model, call.texts, call.dimensions, call.normalize)
        )
    header, profile = build_header(http, "embd-", model), http.service.options.profile

    def write() -> bytes:
        return render_embeddings(result, header, profile, as_base64=call.base64)

    return JsonResponse(
        await render_in_thread_if_large(write, result.dimensions * len(result.vectors)), warnings=warnings
    )


async def refuse_pooling(_: HttpRequest) -> JsonResponse:
    message = "Token embeddings are not supported; use /v1/embeddings for embeddings of texts."
    raise NotFound(message, code="unsupported_endpoint")


async def find_model(http: HttpRequest, call: InputCall) -> tuple[ServedModel, tuple[str, ...]]:
    """Return the model and the warnings.

    Raises:
        RequestError: the server is strict and there are warnings.
    """
    warnings = collect_warnings(call, strict=http.service.options.strict)
    return await http.service.models.load_and_find(call.model), warnings


def build_header(http: HttpRequest, prefix: str, model: ServedModel) -> Header:
    service = http.service
    return Header(service.ids.new(prefix), int(service.clock.now()), model.name, service.generation.fingerprint)


async def render_in_thread_if_large(write: Callable[[], bytes], numbers: int) -> bytes:
    return write() if numbers <= LARGE_RESPONSE else await anyio.to_thread.run_sync(write)
