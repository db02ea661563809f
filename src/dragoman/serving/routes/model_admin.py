"""Routes that list, load, unload and download models, with llama.cpp's paths and bodies (its router mode)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
from msgspec import Struct

from ...core.errors import DragomanError, NotFound, RequestError, Unsupported
from ...core.pull import ModelPuller
from ...dialects.errors import render_openai_error
from ...pipeline.models import Models, ModelSlot, ModelState
from ..admin_body import decode_body
from ..auth import Access
from ..endpoint import HttpRequest, JsonResponse, Route
from ..envelopes import OPENAI
from ..generate import build_stream_headers
from ..streaming import ReplayResponder, Responder

PROGRESS_INTERVAL = 0.5
"""Seconds between two progress events of a load."""
_SUCCESS = JsonResponse(b'{"success":true}')


def build_routes(puller: ModelPuller | None) -> Sequence[Route]:
    """puller: downloads models; None where that is not possible."""
    admin = Access.ADMIN
    return (
        Route("/models", Access.USER, OPENAI, {"GET": list_states}),
        Route("/models/sse", Access.USER, OPENAI, {"GET": watch_states}),
        Route("/models/load", admin, OPENAI, {"POST": load}),
        Route("/models/unload", admin, OPENAI, {"POST": unload}),
        Route("/models/pull", admin, OPENAI, {"POST": partial(pull, puller)}),
    )


class ModelLoadProgress(Struct, frozen=True):
    """Bytes of a download."""

    completed: int
    total: int


class ModelStatus(Struct, frozen=True, omit_defaults=True):
    """The state of a model.

    value: `unloaded`, `downloading`, `loading`, `loaded` or `draining`.
    failed: the last load failed.
    """

    value: str
    failed: bool = False
    progress: ModelLoadProgress | None = None


class ModelStateMeta(Struct, frozen=True, omit_defaults=True):
    n_ctx: int | None = None
    n_ctx_train: int | None = None
    n_params: int | None = None
    size: int | None = None


class ModelStateObject(Struct, frozen=True, omit_defaults=True):
    """A model in llama.cpp's list, without paths of this machine, since users see it."""

    id: str
    object: str
    created: int
    owned_by: str
    status: ModelStatus
    meta: ModelStateMeta | None = None


class ModelStateList(Struct, frozen=True):
    object: str
    data: list[ModelStateObject]


async def list_states(http: HttpRequest) -> JsonResponse | Responder:
    states = [_describe_slot(slot) for slot in http.service.models.slots]
    return JsonResponse(msgspec.json.encode(ModelStateList("list", states)))


async def watch_states(http: HttpRequest) -> JsonResponse | Responder:
    """Stream every model's state, and then each change of one, until the client leaves or the server shuts down."""
    return _stream(http, _report_states(http.service.models))


async def _report_states(models: Models) -> AsyncGenerator[bytes]:
    last: dict[str, bytes] = {}
    async with aclosing(models.watch(PROGRESS_INTERVAL)) as changes:
        async for _ in changes:
            for slot in models.slots:
                status = _render_status(slot)
                if last.get(slot.name) != status:
                    last[slot.name] = status
                    yield status


def _describe_slot(slot: ModelSlot) -> ModelStateObject:
    summary = slot.summary
    details = None if summary is None else summary.details
    return ModelStateObject(
        slot.name,
        "model",
        slot.created,
        "dragoman",
        _describe_status(slot),
        None
        if summary is None or details is None
        else ModelStateMeta(summary.max_model_len, details.trained_length, details.parameters, details.size),
    )


def _describe_status(slot: ModelSlot) -> ModelStatus:
    progress = None if slot.download_progress is None else ModelLoadProgress(*slot.download_progress)
    if slot.status == ModelState.FAILED:
        return ModelStatus(ModelState.UNLOADED.value, failed=True)
    return ModelStatus(slot.status, progress=progress)


class ModelRequest(Struct, frozen=True):
    """The body of the routes that change a model.

    stream: send the progress as server-sent events, and end when it is done.
    """

    model: str
    stream: bool = False


async def load(http: HttpRequest) -> JsonResponse | Responder:
    """Load a model in the background. The response does not wait for it, except as a stream."""
    request = await decode_body(http, ModelRequest)
    slot = http.service.models.find_slot(request.model)
    task = None
    if slot.state is ModelState.UNLOADED:
        task = http.service.models.begin_load(slot)
    return _stream(http, _report_load(slot, task)) if request.stream else _SUCCESS


async def _report_load(slot: ModelSlot, task: asyncio.Task[None] | None) -> AsyncGenerator[bytes]:
    while task is not None and not task.done():
        yield _render_status(slot)
        await asyncio.wait([task], timeout=PROGRESS_INTERVAL)
    if task is not None:
        # Its error is the last event of the stream.
        await asyncio.shield(task)
    yield _render_status(slot)


async def unload(http: HttpRequest) -> JsonResponse | Responder:
    """Unload a model when its running requests have finished."""
    slot = http.service.models.find_slot((await decode_body(http, ModelRequest)).model)
    if slot.is_pinned:
        raise Unsupported(f"The model `{slot.name}` is pinned: it stays loaded.", param="model")
    if slot.state is not ModelState.LOADED:
        raise RequestError(f"The model `{slot.name}` is not loaded.", param="model")
    await http.service.models.unload(slot)
    return _SUCCESS


async def pull(puller: ModelPuller | None, http: HttpRequest) -> JsonResponse | Responder:
    """Download a model of the hub into the cache."""
    request = await decode_body(http, ModelRequest)
    if puller is None:
        raise NotFound("This server does not download models.", code="unsupported_endpoint")
    if request.stream:
        return _stream(http, _report_pull(puller, request.model))
    async for _ in puller.pull(request.model):
        pass
    return _SUCCESS


async def _report_pull(puller: ModelPuller, model: str) -> AsyncGenerator[bytes]:
    async for progress in puller.pull(model):
        yield b"data: %s\n\n" % msgspec.json.encode(ModelEvent(model, "download_progress", progress))


class ModelEvent(Struct, frozen=True):
    """An event in the form of llama.cpp's `/models/sse`."""

    model: str
    event: str
    data: object


class ModelLoadState(Struct, frozen=True, omit_defaults=True):
    """The data of a status change."""

    status: str
    failed: bool = False
    progress: ModelLoadProgress | None = None


def _render_status(slot: ModelSlot) -> bytes:
    status = _describe_status(slot)
    data = ModelLoadState(status.value, status.failed, status.progress)
    return b"data: %s\n\n" % msgspec.json.encode(ModelEvent(slot.name, "status_change", data))


class _EventFraming:
    """Server-sent events without a final marker."""

    end = b""
    keepalive = b": keep-alive\n\n"

    def __init__(self, http: HttpRequest) -> None:
        self._profile = http.service.options.profile

    def render_error(self, error: DragomanError) -> bytes:
        return b"data: %s\n\n" % render_openai_error(error, self._profile)


def _stream(http: HttpRequest, events: AsyncGenerator[bytes]) -> Responder:
    start = http.build_response_start(build_stream_headers(http))
    return ReplayResponder(events, _EventFraming(http), start, http.service.stream_monitor)
