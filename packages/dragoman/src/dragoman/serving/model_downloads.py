"""Model downloads in the background, independent of the request that started them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, contextmanager

from msgspec import Struct

from ..core.errors import (
    DragomanError,
    EngineError,
    RequestError,
)
from ..core.model_download import ModelPuller, PullProgress

log = logging.getLogger(__name__)


log = logging.getLogger(__name__)


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
