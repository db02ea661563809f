"""Routes that list, load, unload and download models, with the paths and bodies of
llama.cpp's router mode.

Downloads that a client starts with POST /models run in the background, independent of
the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from functools import partial

import msgspec
from msgspec import Struct

from ...core.control import ModelPuller, PullProgress
from ...core.errors import (
    DragomanError,
    EngineError,
    NotFound,
    PermissionDenied,
    RequestError,
    Unsupported,
)
from ...dialects.errors import render_openai_error
from ...pipeline.models import ModelSlot, ModelState, Models
from ..auth import Access
from ..endpoint import HttpRequest, JsonResponse, OPENAI, Route
from ..generate import build_stream_headers
from ..streaming import ReplayResponder, Responder
from .admin import decode_body

log = logging.getLogger(__name__)

PROGRESS_INTERVAL = 0.5
"""Seconds between two progress events of a load."""
_SUCCESS = JsonResponse(b'{"success":true}')


def build_routes(puller: ModelPuller | None, downloads: ModelDownloads | None) -> Sequence[Route]:
    """Build the routes.

    puller: downloads models; None if this server does not download models.
    downloads: background downloads; None if `puller` is None.
    """
    admin = Access.ADMIN
    on_models = {
        "GET": partial(list_states, downloads),
        "POST": partial(start_download, downloads),
        "DELETE": refuse_deletion,
    }
    return (
        Route("/models", Access.USER, OPENAI, on_models),
        Route("/models/sse", Access.USER, OPENAI, {"GET": partial(watch_states, downloads)}),
        Route("/models/load", admin, OPENAI, {"POST": load}),
        Route("/models/unload", admin, OPENAI, {"POST": partial(unload, downloads)}),
        Route("/models/pull", admin, OPENAI, {"POST": partial(pull, puller)}),
    )


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


# Background downloads.


class FileProgress(Struct, frozen=True):
    """Downloaded and total bytes of a file; the field names are llama.cpp's."""

    done: int
    total: int


class DownloadReport(Struct, frozen=True):
    """A change of a download.

    event: `download_progress`, `download_finished` or `download_failed`.
    files: the bytes of each file, by its digest; empty except for `download_progress`.
    error: the reason of `download_failed`; None otherwise.
    """

    model: str
    event: str
    files: Mapping[str, FileProgress] = {}
    error: DragomanError | None = None


class ModelDownloads:
    """The running background downloads.

    A `lifespan.LifespanResource`: downloads are cancelled when the server stops, and
    can be resumed later.
    """

    def __init__(self, puller: ModelPuller) -> None:
        self._puller = puller
        self._downloads: dict[str, tuple[asyncio.Task[None], AsyncGenerator[PullProgress]]] = {}
        self._files: dict[str, dict[str, FileProgress]] = {}
        self._subscribers: list[list[DownloadReport]] = []

    @property
    def running(self) -> Mapping[str, Mapping[str, FileProgress]]:
        """The bytes of each file, by the name of the model."""
        return self._files

    async def open(self) -> None:
        """Do nothing: each download is started by a request."""

    async def close(self) -> None:
        for model in tuple(self._downloads):
            await self.cancel(model)

    async def start(self, model: str) -> None:
        """Start a download, and return once the hub has listed the files; return at
        once if it is running already.

        Raises:
            DragomanError: there is no such model, or it cannot be downloaded.
        """
        # Not `_downloads`, which has no entry yet while the hub lists the files.
        if model in self._files:
            return
        self._files[model] = {}
        reports = self._puller.pull(model)
        try:
            # The first report precedes the request to the hub.
            first = await anext(reports, None)
            first = await anext(reports, first)
        except BaseException:
            # BaseException, because a client's disconnect cancels this call.
            del self._files[model]
            await reports.aclose()
            raise
        if first is not None:
            self._note(model, first)
        task = asyncio.create_task(self._run(model, reports))
        self._downloads[model] = task, reports
        task.add_done_callback(lambda task: self._finish(model, task))

    async def _run(self, model: str, reports: AsyncGenerator[PullProgress]) -> None:
        async with aclosing(reports):
            async for progress in reports:
                self._note(model, progress)

    def _finish(self, model: str, task: asyncio.Task[None]) -> None:
        del self._downloads[model], self._files[model]
        error = (
            RequestError("The download was cancelled.") if task.cancelled() else task.exception()
        )
        if error is None:
            log.info("%s: downloaded, as an administrator requested", model)
            self._publish(DownloadReport(model, "download_finished"))
            return
        if not isinstance(error, DragomanError):
            log.error("%s cannot be downloaded", model, exc_info=error)
            # Only the log shows the cause, which may contain paths and addresses of the
            # server.
            error = EngineError("The download failed.")
        log.warning("%s is not downloaded: %s", model, error)
        self._publish(DownloadReport(model, "download_failed", error=error))

    def _note(self, model: str, progress: PullProgress) -> None:
        if progress.total is not None and progress.completed is not None:
            files = self._files[model]
            files[progress.digest or progress.status] = FileProgress(
                progress.completed, progress.total
            )
            self._publish(DownloadReport(model, "download_progress", dict(files)))

    def _publish(self, report: DownloadReport) -> None:
        for reports in self._subscribers:
            # The newest progress replaces progress that has not been read yet.
            if report.event == "download_progress":
                reports[:] = [
                    other
                    for other in reports
                    if (other.model, other.event) != (report.model, report.event)
                ]
            reports.append(report)

    @contextmanager
    def subscribe(self) -> Generator[list[DownloadReport]]:
        """Yield a list to which reports are added until the block ends; the reader
        removes them.
        """
        reports: list[DownloadReport] = []
        self._subscribers.append(reports)
        try:
            yield reports
        finally:
            self._subscribers.remove(reports)

    async def cancel(self, model: str) -> bool:
        """Cancel a download and wait for its end; return whether it was running."""
        if model not in self._downloads:
            return False
        task, reports = self._downloads[model]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # The task does not close the generator if it is cancelled before its first
        # step.
        await reports.aclose()
        return True
