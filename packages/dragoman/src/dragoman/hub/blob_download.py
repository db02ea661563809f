"""The download of one file into the blobs of the shared cache: resumed after a crash,
never longer than the list of files says, and verified.

Since version 1, `huggingface_hub` restarts an interrupted file from its first byte,
checks only its size, and names the blob after a header of the answer. Files are
therefore requested here, and the list of files says what they are.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from io import BufferedRandom
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from .errors import DownloadCancelled, HubError, HubUnavailable
from .file_selection import RepositoryFile
from .hub_cache import find_blob, find_blob_lock, find_partial_blob, get_cache_folder

if TYPE_CHECKING:
    from .hub_client import HubClient

CHUNK_BYTES = 1 << 20

MAX_ATTEMPTS = 5
"""Consecutive attempts without progress after which a download fails."""
RETRY_SECONDS = 1.0
"""Delay after the first consecutive attempt without progress; the nth is followed by n
times this delay.
"""

OnProgress = Callable[[str, RepositoryFile, int], None]
"""Called with `downloading` or `verifying`, the file, and its bytes that have arrived.
"""


def _ignore_progress(status: str, file: RepositoryFile, size: int) -> None: ...


class Digest(Protocol):
    """A hash object of hashlib, which has no public type for it."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def _build_digest(file: RepositoryFile) -> Digest:
    """Build the digest whose value is the file's checksum."""
    if file.sha256 is not None:
        return hashlib.sha256()
    # The id that git gives a file: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)


class _PartialFile:
    """A file that is being downloaded, and the digest of its bytes.

    output: open for reading and writing, at the first byte.
    """

    def __init__(self, file: RepositoryFile, output: BufferedRandom) -> None:
        self._file = file
        self._output = output
        self.digest = _build_digest(file)
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
        self.digest = _build_digest(self._file)
        self.size = 0


def _is_verified(file: RepositoryFile, blob: Path) -> bool:
    """Whether a blob is there with the file's bytes. Another program may have written
    it.
    """
    if not blob.is_file() or blob.stat().st_size != file.size:
        return False
    digest = _build_digest(file)
    with blob.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == file.checksum


class BlobDownload(Struct, frozen=True):
    """The download of files of a commit.

    repository: `org/name`.
    cancelled: set to cancel.
    retry_seconds: see `RETRY_SECONDS`.
    """

    client: HubClient
    repository: str
    commit: str
    cancelled: threading.Event
    on_progress: OnProgress = _ignore_progress
    retry_seconds: float = RETRY_SECONDS

    def fetch(self, file: RepositoryFile) -> None:
        """Download a file, unless its blob is in the cache. Blocking.

        Raises:
            HubError: the file is damaged, or not sent completely.
            DownloadCancelled: `cancelled` was set.
            OSError, HttpClientError, ValueError: it cannot be downloaded.
        """
        from huggingface_hub.utils import WeakFileLock  # noqa: PLC0415 - takes a fifth of a second

        self._raise_if_cancelled()
        storage = get_cache_folder(self.repository)
        blob = find_blob(storage, file)
        blob.parent.mkdir(parents=True, exist_ok=True)
        lock = find_blob_lock(storage, file)
        lock.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            if not _is_verified(file, blob):
                partial = find_partial_blob(storage, file)
                self._fetch_verified(file, partial)
                # Renamed last, so that every blob in the shared cache is complete and
                # verified.
                partial.replace(blob)
        self.on_progress("downloading", file, file.size)

    def _fetch_verified(self, file: RepositoryFile, path: Path) -> None:
        from dragoman_http import HttpClientError, InvalidRedirect  # noqa: PLC0415 - see `dragoman.hub`

        path.touch()
        with path.open("r+b") as output:
            partial = _PartialFile(file, output)
            if partial.size > file.size:
                partial.restart()
            self.on_progress("downloading", file, partial.size)
            failures = 0
            most = partial.size
            while partial.size < file.size:
                self._raise_if_cancelled()
                failure: Exception = HubError(
                    f"{file.path} of {self.repository} is sent incompletely; run the command "
                    f"again to continue the download"
                )
                try:
                    self._fetch_rest(file, partial)
                except InvalidRedirect:
                    raise
                except (HttpClientError, HubUnavailable) as error:
                    failure = error
                # Only attempts without progress count: a large file survives any number
                # of interruptions. Bytes that a server without ranges sends again are
                # no progress.
                failures = 0 if partial.size > most else failures + 1
                most = max(most, partial.size)
                if failures >= MAX_ATTEMPTS:
                    raise failure
                self.cancelled.wait(self.retry_seconds * failures)
        self.on_progress("verifying", file, file.size)
        if partial.digest.hexdigest() != file.checksum:
            path.unlink()
            raise HubError(
                f"{file.path} of {self.repository} arrived damaged (its checksum is not that of "
                f"the hub) and was removed; run the command again to download it again"
            )

    def _fetch_rest(self, file: RepositoryFile, partial: _PartialFile) -> None:
        """Append the missing bytes to the file. Returns early if the response is too
        short.
        """
        with self.client.stream_file(
            self.repository, self.commit, file.path, partial.size
        ) as response:
            if partial.size and response.status == 200:
                # The server ignored the range.
                partial.restart()
            for chunk in response:
                self._raise_if_cancelled()
                if partial.size + len(chunk) > file.size:
                    # None of it can be trusted: a later run starts at the first byte.
                    partial.restart()
                    raise HubError(
                        f"{file.path} of {self.repository} is longer than the {file.size} bytes "
                        f"that the hub lists; choose another revision, or check HF_ENDPOINT"
                    )
                partial.append(chunk)
                self.on_progress("downloading", file, partial.size)

    def _raise_if_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise DownloadCancelled
