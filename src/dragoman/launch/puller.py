"""Downloads models of the hub for the routes that pull: `ModelPuller` over the download in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

from ..core.errors import EngineError, NotFound, RequestError
from ..core.pull import PullProgress
from ..hub import DownloadCancelled, DownloadEvent, HubError, download
from ..settings import Settings
from .hub_models import find_reference, prepare_pull

_INTERVAL_BYTES = 16 << 20
"""Bytes of a file between two reports."""


class HubPuller:
    """Downloads models into the shared cache. They can be served after a restart with MODEL, or by a settings file."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def pull(self, model: str) -> AsyncGenerator[PullProgress]:
        """Download a model, and report the progress. Closing the generator cancels the download.

        model: `org/name[:quant][@revision]`, also with `hf:` or `hf.co/` before it.

        Raises:
            NotFound: MODEL is no name of the hub.
            RequestError: there is no such model, or it cannot be loaded.
            EngineError: the download failed.
        """
        yield PullProgress("pulling manifest")
        try:
            # Ollama's name of the default.
            found = find_reference(model.removesuffix(":latest"))
            if found is None:
                raise NotFound(f"`{model[:100]}` is not a model of the hub; write `org/name` or `org/name:QUANT`.")
            prepared = await asyncio.to_thread(prepare_pull, self._settings, *found)
        except HubError as error:
            raise RequestError(f"{error}.", param="model") from error
        reports: asyncio.Queue[DownloadEvent | None] = asyncio.Queue()
        loop, cancelled = asyncio.get_running_loop(), threading.Event()

        def on_event(event: DownloadEvent) -> None:
            loop.call_soon_threadsafe(reports.put_nowait, event)

        task = asyncio.create_task(asyncio.to_thread(download, prepared.plan, on_event, cancelled))
        task.add_done_callback(lambda _: reports.put_nowait(None))
        reported: dict[str, int] = {}
        try:
            while (event := await reports.get()) is not None:
                if event.file is None:
                    continue
                last = reported.get(event.file, -_INTERVAL_BYTES)
                if event.completed - last >= _INTERVAL_BYTES or event.completed == event.total:
                    reported[event.file] = event.completed
                    digest = None if event.digest is None else f"sha256:{event.digest}"
                    name = event.file if event.digest is None else event.digest[:12]
                    status = "verifying sha256 digest" if event.status == "verifying" else f"pulling {name}"
                    yield PullProgress(status, digest, event.total, event.completed)
            await task
        except (HubError, DownloadCancelled, OSError) as error:
            raise EngineError(f"{error}.") from error
        finally:
            cancelled.set()
            await asyncio.gather(task, return_exceptions=True)
        yield PullProgress("success")
