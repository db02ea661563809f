"""Downloads of a model's files into the shared cache, with their progress."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from .blob_download import RETRY_SECONDS, BlobDownload
from .download_plan import DownloadPlan
from .errors import HubError, translate_errors
from .file_selection import RepositoryFile
from .hub_cache import (
    find_blob,
    find_partial_blob,
    get_cache_folder,
    link_blob,
    record_revision,
)

MAX_WORKERS = 4
"""Concurrent downloads. One stream of the hub's CDN rarely fills a fast line; many
streams hit its rate limit.
"""


class DownloadEvent(Struct, frozen=True):
    """Progress of a download.

    status: `downloading`, `verifying` or `success`.
    all_completed, all_total: bytes of all files.
    file: the path of the file; None for an event of the whole download.
    digest: the file's SHA-256; None if the hub does not state it.
    completed, total: bytes of this file.
    """

    status: str
    all_completed: int
    all_total: int
    file: str | None = None
    digest: str | None = None
    completed: int = 0
    total: int = 0


OnEvent = Callable[[DownloadEvent], None]
"""Called from the threads of the download, one call at a time."""


class _Download:
    """One download: its progress and its cancellation.

    cancelled: set to cancel the download.
    retry_seconds: see `RETRY_SECONDS`.
    """

    def __init__(
        self,
        plan: DownloadPlan,
        on_event: OnEvent,
        cancelled: threading.Event,
        retry_seconds: float,
    ) -> None:
        self._plan = plan
        self._on_event = on_event
        self._cancelled = cancelled
        self._retry_seconds = retry_seconds
        self._storage = get_cache_folder(plan.repository)
        self._completed = {file.path: 0 for file in plan.files}
        self._lock = threading.Lock()

    def run(self, missing: Sequence[RepositoryFile]) -> None:
        from .hub_client import HubClient  # noqa: PLC0415 - see `dragoman.hub`

        missing_paths = {file.path for file in missing}
        for file in self._plan.files:
            if file.path not in missing_paths:
                self._completed[file.path] = file.size
        self._check_space(missing)
        self._report("downloading")
        with (
            HubClient() as client,
            ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="download") as pool,
        ):
            blobs = BlobDownload(
                client,
                self._plan.repository,
                self._plan.commit,
                self._cancelled,
                self._report,
                self._retry_seconds,
            )
            futures = [pool.submit(blobs.fetch, file) for file in missing]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                # The pool waits for its threads: without the cancellation the error
                # would be reported only when the other files are complete.
                self._cancelled.set()
                raise
        # In the order of the plan: weights are linked last, so a directory that
        # contains them is complete.
        for file in missing:
            link_blob(self._storage, self._plan.commit, file)
        record_revision(self._storage, self._plan.revision, self._plan.commit)
        self._report("success")

    def _check_space(self, missing: Sequence[RepositoryFile]) -> None:
        partial = sum(
            find_partial_blob(self._storage, file).stat().st_size
            for file in missing
            if find_partial_blob(self._storage, file).exists()
        )
        required = (
            sum(file.size for file in missing if not find_blob(self._storage, file).exists())
            - partial
        )
        # The cache may not exist yet; its nearest parent is on the same disk.
        existing = next(path for path in (self._storage, *self._storage.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        if required > free:
            raise HubError(
                f"{self._plan.repository} needs {format_bytes(required)} more and {existing} has "
                f"{format_bytes(free)} "
                "free; free space, or set HF_HUB_CACHE to a directory on another disk"
            )

    def _report(self, status: str, file: RepositoryFile | None = None, completed: int = 0) -> None:
        with self._lock:
            if file is not None:
                self._completed[file.path] = completed
            done = sum(self._completed.values())
            if file is None:
                self._on_event(DownloadEvent(status, done, self._plan.size))
            else:
                self._on_event(
                    DownloadEvent(
                        status, done, self._plan.size, file.path, file.sha256, completed, file.size
                    )
                )


def download(
    plan: DownloadPlan,
    on_event: OnEvent,
    cancelled: threading.Event | None = None,
    *,
    retry_seconds: float = RETRY_SECONDS,
) -> None:
    """Download the missing files of a plan, and record the commit of its revision.
    Blocking.

    Raises:
        HubError: a file cannot be downloaded; the bytes that have arrived are kept.
        DownloadCancelled: `cancelled` was set.
    """
    cancelled = cancelled or threading.Event()
    missing = plan.find_missing()
    with translate_errors(plan.repository):
        if missing:
            _Download(plan, on_event, cancelled, retry_seconds).run(missing)
        else:
            # Another name of the commit may have been downloaded.
            record_revision(get_cache_folder(plan.repository), plan.revision, plan.commit)


def format_bytes(count: int) -> str:
    """Format a size in decimal units, such as `4.2 GB`, as the hub's pages do."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        # Rounded first: 999,960 bytes are 1.0 MB and not 1000.0 kB.
        if round(size, 1) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
