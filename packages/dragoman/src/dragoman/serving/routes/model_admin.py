"""Routes that list, load, unload or download models, as llama.cpp's router mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext
from functools import partial
from typing import Literal

import msgspec
from msgspec import Struct

from ...core.errors import (
    DragomanError,
    NotFound,
    PermissionDenied,
    RequestError,
    Unsupported,
)
from ...core.model_download import ModelPuller
from ...dialects.openai_errors import OPENAI_ERRORS, OpenAIErrorBody, render_openai_error
from ...pipeline.model_lifecycle import ModelSlot, ModelState
from ...pipeline.model_registry import Models
from ..api_description import EVENTS, response
from ..auth import Access
from ..generation_handler import build_stream_headers
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..model_downloads import DownloadReport, FileProgress, ModelDownloads
from ..replay_responder import ReplayResponder
from ..responder import Responder
from ..route import Route, RouteGroup
from .engine_control import decode_body

PROGRESS_INTERVAL = 0.5
"""Seconds between two progress events of a load."""
_SUCCESS = JsonResponse(b'{"success":true}')


def build_routes(puller: ModelPuller | None, downloads: ModelDownloads | None) -> Sequence[Route]:
    """Build the routes.

    puller: downloads models; None if this server does not download models.
    downloads: background downloads; None if `puller` is None.
    """
    loading = (response(Success), response(ModelEvent, OpenAIErrorBody, media=EVENTS))
    routes = RouteGroup("Models", OPENAI_ERRORS, Access.ADMIN)
    routes.add(
        "GET",
        "/models",
        partial(list_states, downloads),
        "List the models with their states",
        response(ModelStateList),
        access=Access.USER,
    )
    routes.add(
        "POST",
        "/models",
        partial(start_download, downloads),
        "Download a model in the background",
        response(Success),
        bodies=(ModelRequest,),
        access=Access.USER,
    )
    routes.add(
        "DELETE",
        "/models",
        refuse_deletion,
        "Not supported: models are deleted by the operator",
        access=Access.USER,
    )
    routes.add(
        "GET",
        "/models/sse",
        partial(watch_states, downloads),
        "Stream the states of the models, and each change",
        response(ModelEvent, media=EVENTS),
        access=Access.USER,
    )
    routes.add("POST", "/models/load", load, "Load a model", *loading, bodies=(ModelRequest,))
    routes.add(
        "POST",
        "/models/unload",
        partial(unload, downloads),
        "Unload a model",
        *loading,
        bodies=(ModelRequest,),
    )
    routes.add(
        "POST",
        "/models/pull",
        partial(pull, puller),
        "Download a model",
        *loading,
        bodies=(ModelRequest,),
    )
    return routes.build()


class ModelStatus(Struct, frozen=True, omit_defaults=True):
    """The state of a model.

    value: `unloaded`, `downloading`, `loading`, `loaded` or `draining`.
    failed: whether the last load failed.
    progress: the progress of a download: of each file, by its digest; for a served
        model of all files, by its name.
    """

    value: str
    failed: bool = False
    progress: dict[str, FileProgress] | None = None


class ModelStateMeta(Struct, frozen=True, omit_defaults=True):
    n_ctx: int | None = None
    n_ctx_train: int | None = None
    n_params: int | None = None
    size: int | None = None


class ModelStateObject(Struct, frozen=True, omit_defaults=True):
    """A model in llama.cpp's list. It contains no paths of this machine, because all
    users can see it.
    """

    id: str
    object: str
    created: int
    owned_by: str
    status: ModelStatus
    meta: ModelStateMeta | None = None


class ModelStateList(Struct, frozen=True):
    object: str
    data: list[ModelStateObject]


async def list_states(
    downloads: ModelDownloads | None, http: HttpRequest
) -> JsonResponse | Responder:
    """List the served models, and for administrators also the downloads of POST
    /models.
    """
    states: list[ModelStateObject] = []
    for slot in http.service.models.slots:
        meta = None
        if (summary := slot.summary) is not None:
            details = summary.details
            meta = ModelStateMeta(
                summary.max_model_len, details.trained_length, details.parameters, details.size
            )
        status = _describe_status(slot)
        states.append(ModelStateObject(slot.name, "model", slot.created, "dragoman", status, meta))
    if downloads is not None and _is_administrator(http):
        now = int(http.service.clock.now())
        states += [
            ModelStateObject(
                name, "model", now, "dragoman", ModelStatus("downloading", progress=dict(files))
            )
            for name, files in downloads.running.items()
        ]
    return JsonResponse(msgspec.json.encode(ModelStateList("list", states)))


async def watch_states(
    downloads: ModelDownloads | None, http: HttpRequest
) -> JsonResponse | Responder:
    """Stream the state of every model and then each change, until the client
    disconnects or the server shuts down.

    Administrators also see the downloads of POST /models.
    """
    return _stream(
        http,
        _report_states(http.service.models, downloads if _is_administrator(http) else None, http),
    )


async def _report_states(
    models: Models, downloads: ModelDownloads | None, http: HttpRequest
) -> AsyncGenerator[bytes]:
    last: dict[str, bytes] = {}
    with (
        nullcontext(list[DownloadReport]())
        if downloads is None
        else downloads.subscribe() as reports
    ):
        async with aclosing(models.watch(PROGRESS_INTERVAL)) as changes:
            async for _ in changes:
                for slot in models.slots:
                    status = _render_status(slot)
                    # The watch also yields on every interval, so the status may be
                    # unchanged.
                    if last.get(slot.name) != status:
                        last[slot.name] = status
                        yield status
                while reports:
                    yield _render_report(reports.pop(0), http)


def _describe_status(slot: ModelSlot) -> ModelStatus:
    progress = (
        None
        if slot.download_progress is None
        else {slot.name: FileProgress(*slot.download_progress)}
    )
    if slot.status == ModelState.FAILED:
        return ModelStatus(ModelState.UNLOADED.value, failed=True)
    return ModelStatus(slot.status, progress=progress)


class ModelRequest(Struct, frozen=True):
    """The body of the routes that change a model.

    stream: send the progress as server-sent events until the operation is done.
    """

    model: str
    stream: bool = False


async def load(http: HttpRequest) -> JsonResponse | Responder:
    """Load a model in the background. Only a streamed response waits for the end.

    Raises:
        Overloaded: the last load or the engine has failed, and is retried later.
    """
    request = await decode_body(http, ModelRequest)
    models = http.service.models
    slot = models.find_slot(request.model)
    task = None
    # A model that is being unloaded is loaded again after that.
    if slot.state in (ModelState.UNLOADED, ModelState.DRAINING):
        task = models.begin_load(slot)
    else:
        # Raises Overloaded for a failed model.
        slot.acquire_model()
    return _stream(http, _report_load(slot, task)) if request.stream else _SUCCESS


async def _report_load(slot: ModelSlot, task: asyncio.Task[None] | None) -> AsyncGenerator[bytes]:
    while task is not None and not task.done():
        yield _render_status(slot)
        await asyncio.wait([task], timeout=PROGRESS_INTERVAL)
    if task is not None:
        # If the load failed, this raises, and the error becomes the last event of the
        # stream.
        await asyncio.shield(task)
    yield _render_status(slot)


async def unload(downloads: ModelDownloads | None, http: HttpRequest) -> JsonResponse | Responder:
    """Unload a model when its running requests have finished, or cancel its download."""
    request = await decode_body(http, ModelRequest)
    if downloads is not None and await downloads.cancel(request.model):
        return _SUCCESS
    slot = http.service.models.find_slot(request.model)
    if slot.is_pinned:
        raise Unsupported(f"The model `{slot.name}` is pinned: it stays loaded.", param="model")
    if slot.state is not ModelState.LOADED:
        raise RequestError(f"The model `{slot.name}` is not loaded.", param="model")
    await http.service.models.unload(slot)
    return _SUCCESS


def _is_administrator(http: HttpRequest) -> bool:
    return http.caller.is_admin or http.service.tenancy.keyring.is_open


async def start_download(
    downloads: ModelDownloads | None, http: HttpRequest
) -> JsonResponse | Responder:
    """Download a model in the background, as llama.cpp's router does.

    /models/sse reports the progress, and /models/unload cancels the download.

    Raises:
        PermissionDenied: the caller is not an administrator.
        NotFound: this server does not download models.
        RequestError: there is no such model.
    """
    request = await decode_body(http, ModelRequest)
    if not _is_administrator(http):
        raise PermissionDenied("Downloading a model needs an administrator's key.")
    if downloads is None:
        raise NotFound("This server does not download models.", code="unsupported_endpoint")
    if request.stream:
        raise Unsupported(
            "POST /models sends no stream; POST /models/pull does, or watch /models/sse.",
            param="stream",
        )
    await downloads.start(request.model)
    return _SUCCESS


async def refuse_deletion(_: HttpRequest) -> JsonResponse | Responder:
    raise Unsupported(
        "DELETE /models is not supported: models are files of the operator, who deletes one with "
        "`dragoman rm MODEL`."
    )


async def pull(puller: ModelPuller | None, http: HttpRequest) -> JsonResponse | Responder:
    """Download a model from the hub into the cache."""
    request = await decode_body(http, ModelRequest)
    if puller is None:
        raise NotFound("This server does not download models.", code="unsupported_endpoint")
    if request.stream:
        events = (
            _render_event(request.model, "download_progress", progress)
            async for progress in puller.pull(request.model)
        )
        return _stream(http, events)
    async for _ in puller.pull(request.model):
        pass
    return _SUCCESS


class ModelEvent(Struct, frozen=True):
    """An event of `/models/sse`, as in llama.cpp."""

    model: str
    event: str
    data: object


class ModelLoadState(Struct, frozen=True, omit_defaults=True):
    """The data of a status change."""

    status: str
    failed: bool = False
    progress: dict[str, FileProgress] | None = None


def _render_event(model: str, event: str, data: object) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(ModelEvent(model, event, data))


def _render_status(slot: ModelSlot) -> bytes:
    status = _describe_status(slot)
    data = ModelLoadState(status.value, status.failed, status.progress)
    return _render_event(slot.name, "status_change", data)


class DownloadedBytes(Struct, frozen=True):
    """The data of a download's progress.

    progress: the bytes of each file, by its digest.
    """

    progress: dict[str, FileProgress]


def _render_report(report: DownloadReport, http: HttpRequest) -> bytes:
    data: object = {}
    if report.event == "download_progress":
        data = DownloadedBytes(dict(report.files))
    elif report.error is not None:
        data = msgspec.Raw(render_openai_error(report.error, http.service.options.profile))
    return _render_event(report.model, report.event, data)


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


class Success(Struct, frozen=True):
    success: Literal[True]
