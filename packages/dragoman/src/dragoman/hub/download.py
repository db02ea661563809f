"""Downloads into the shared Hugging Face cache, resumed after a crash.

Since version 1, `huggingface_hub` restarts an interrupted file from its first byte, and
checks only its size. Large files are therefore downloaded with range requests and
verified here. `huggingface_hub` downloads small files and creates the links.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from io import BufferedRandom
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from .download_plan import DownloadPlan
from .errors import DownloadCancelled, HubError, translate_errors
from .file_selection import RepositoryFile
from .modelscope import download_from_modelscope
from .repository import fetch_file, get_cache_folder

CHUNK_BYTES = 1 << 20
MAX_WORKERS = 4
"""Concurrent downloads. One stream of the hub's CDN rarely fills a fast line; many
streams hit its rate limit.
"""
MAX_ATTEMPTS = 5
"""Consecutive attempts without progress after which a download fails."""
RETRY_SECONDS = 1.0
"""Delay after the first consecutive attempt without progress; the nth is followed by n
times this delay.
"""
TIMEOUT_SECONDS = 30.0
"""Time without a byte after which a connection counts as lost."""


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


class Digest(Protocol):
    """A hash object of hashlib, which has no public type for it."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class _PartialFile:
    """A file that is being downloaded, and the SHA-256 of its bytes.

    output: open for reading and writing, at the first byte.
    """

    def __init__(self, output: BufferedRandom) -> None:
        self._output = output
        self.digest: Digest = hashlib.sha256()
        # The bytes of an earlier attempt: hashing them again is cheaper than
        # downloading them again.
        while chunk := output.read(CHUNK_BYTES):
            self.digest.update(chunk)
        self.size = output.tell()

    def append(self, chunk: bytes) -> None:
        self._output.write(chunk)
        # A killed process then loses at most one chunk.
        self._output.flush()
        self.digest.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        """Remove all bytes."""
        self._output.seek(0)
        self._output.truncate()
        self.digest = hashlib.sha256()
        self.size = 0


class _Download:
    """One download: its progress, its cancellation and its HTTP client.

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
        import httpx2  # noqa: PLC0415 - not needed by servers without models of a hub

        utils: Any = import_module("huggingface_hub.utils")
        # Without compression: a range counts bytes of the encoded body, so a resumed
        # file would be damaged.
        headers = {**utils.build_hf_headers(library_name="dragoman"), "accept-encoding": "identity"}
        # httpx2 removes the token from redirects to another host, such as the CDN.
        self._client = httpx2.Client(
            headers=headers, timeout=TIMEOUT_SECONDS, follow_redirects=True
        )

    def run(self, missing: Sequence[RepositoryFile]) -> None:
        missing_paths = {file.path for file in missing}
        for file in self._plan.files:
            if file.path not in missing_paths:
                self._completed[file.path] = file.size
        partial = sum(
            self._find_partial(file).stat().st_size
            for file in missing
            if self._find_partial(file).exists()
        )
        required = (
            sum(file.size for file in missing if not self._find_blob(file).exists()) - partial
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
        self._report("downloading")
        with self._client, ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="download") as pool:
            futures = [pool.submit(self._fetch, file) for file in missing]
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
            if file.sha256 is not None:
                # Their blobs are in the cache by now, so huggingface_hub only links
                # them.
                fetch_file(self._plan.repository, self._plan.commit, file.path)
        if self._plan.revision != self._plan.commit:
            # The commit of a branch or a tag is recorded only after all files are
            # present.
            reference = self._storage / "refs" / self._plan.revision
            reference.parent.mkdir(parents=True, exist_ok=True)
            draft = reference.with_name(f"{reference.name}.{threading.get_ident()}.tmp")
            draft.write_text(self._plan.commit, encoding="ascii")
            # Replaced atomically: another process must not read a partial reference.
            draft.replace(reference)
        self._report("success")

    def _find_blob(self, file: RepositoryFile) -> Path:
        return self._storage / "blobs" / (file.sha256 or f"none-{file.path.replace('/', '-')}")

    def _find_partial(self, file: RepositoryFile) -> Path:
        return self._find_blob(file).with_name(f"{self._find_blob(file).name}.dragoman.incomplete")

    def _fetch(self, file: RepositoryFile) -> None:
        from huggingface_hub.utils import WeakFileLock  # noqa: PLC0415 - takes a fifth of a second

        self._raise_if_cancelled()
        if file.sha256 is None:
            fetch_file(self._plan.repository, self._plan.commit, file.path)
            self._report("downloading", file, file.size)
            return
        blob = self._find_blob(file)
        partial = self._find_partial(file)
        blob.parent.mkdir(parents=True, exist_ok=True)
        # The lock of huggingface_hub: another program waits instead of downloading the
        # same file.
        lock = self._storage.parent / ".locks" / self._storage.name / f"{blob.name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            if not blob.exists():
                with translate_errors(self._plan.repository):
                    self._fetch_verified(file, file.sha256, partial)
                # Renamed last, so that every blob in the shared cache is complete and
                # verified.
                partial.replace(blob)
        self._report("downloading", file, file.size)

    def _fetch_verified(self, file: RepositoryFile, sha256: str, path: Path) -> None:
        from httpx2 import TransportError  # noqa: PLC0415 - not needed by servers without models of a hub

        path.touch()
        with path.open("r+b") as output:
            partial = _PartialFile(output)
            if partial.size > file.size:
                partial.restart()
            self._report("downloading", file, partial.size)
            failures = 0
            most = partial.size
            while partial.size < file.size:
                self._raise_if_cancelled()
                failure: Exception = HubError(
                    f"{file.path} of {self._plan.repository} is sent incompletely; run the "
                    f"command again to continue "
                    "the download"
                )
                try:
                    self._fetch_rest(file, partial)
                except TransportError as error:
                    failure = error
                # Only attempts without progress count: a large file survives any number
                # of interruptions. Bytes that a server without ranges sends again are
                # no progress.
                failures = 0 if partial.size > most else failures + 1
                most = max(most, partial.size)
                if failures >= MAX_ATTEMPTS:
                    raise failure
                self._cancelled.wait(self._retry_seconds * failures)
        self._report("verifying", file, file.size)
        if partial.digest.hexdigest() != sha256:
            path.unlink()
            raise HubError(
                f"{file.path} of {self._plan.repository} arrived damaged (its SHA-256 is not that "
                f"of the hub) and was "
                "removed; run the command again to download it again"
            )

    def _fetch_rest(self, file: RepositoryFile, partial: _PartialFile) -> None:
        """Append the missing bytes to the file. Returns early if the response is too
        short.
        """
        from huggingface_hub import hf_hub_url  # noqa: PLC0415 - takes a fifth of a second

        url = hf_hub_url(self._plan.repository, file.path, revision=self._plan.commit)
        headers = {"range": f"bytes={partial.size}-"} if partial.size else {}
        with self._client.stream("GET", url, headers=headers) as response:
            if response.status_code not in (200, 206):
                raise HubError(
                    f"the hub returned status {response.status_code} for {file.path} of "
                    f"{self._plan.repository}; run "
                    "the command again to continue the download"
                )
            if partial.size and response.status_code == 200:
                # The server ignored the range.
                partial.restart()
            for chunk in response.iter_bytes():
                self._raise_if_cancelled()
                partial.append(chunk)
                self._report("downloading", file, partial.size)

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

    def _raise_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise DownloadCancelled


def download(
    plan: DownloadPlan,
    on_event: OnEvent,
    cancelled: threading.Event | None = None,
    *,
    retry_seconds: float = RETRY_SECONDS,
) -> None:
    """Download the missing files of a plan. Blocking.

    Raises:
        HubError: a file cannot be downloaded; the bytes that have arrived are kept.
        DownloadCancelled: `cancelled` was set.
    """
    cancelled = cancelled or threading.Event()
    missing = {file.path: file for file in plan.find_missing()}
    if not missing:
        return
    if plan.hub == "huggingface":
        _Download(plan, on_event, cancelled, retry_seconds).run(tuple(missing.values()))
        return
    completed = {file.path: 0 if file.path in missing else file.size for file in plan.files}
    lock = threading.Lock()

    def report(path: str, size: int) -> None:
        with lock:
            if path in missing:
                file = missing[path]
                completed[path] = min(file.size, completed[path] + size)
                done = sum(completed.values())
                on_event(
                    DownloadEvent(
                        "downloading",
                        done,
                        plan.size,
                        path,
                        file.sha256,
                        completed[path],
                        file.size,
                    )
                )

    on_event(DownloadEvent("downloading", sum(completed.values()), plan.size))
    download_from_modelscope(plan, report, cancelled)
    on_event(DownloadEvent("success", plan.size, plan.size))


def format_bytes(count: int) -> str:
    """Format a size in decimal units, such as `4.2 GB`, as the hub's pages do."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        # Rounded first: 999,960 bytes are 1.0 MB and not 1000.0 kB.
        if round(size, 1) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
