"""Repositories at one commit, read from the hub or only from the shared cache."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from .blob_download import BlobDownload
from .errors import HubError, translate_errors
from .file_selection import MAX_METADATA_BYTES, RepositoryFile, is_inside
from .hub_cache import get_cache_folder, link_blob, read_revision
from .model_reference import ModelReference

# A git commit (SHA-1) in hexadecimal digits.
_COMMIT = re.compile(r"[0-9a-f]{40}")
DEFAULT_REVISION = "main"


class Repository(Struct, frozen=True):
    """A repository at one commit.

    id: `org/name`.
    revision: the branch, tag or commit that was requested.
    directory: the cache's directory for the files of this commit; need not exist.
    is_remote: whether files that are not in the cache may be requested from the hub.
    """

    id: str
    revision: str
    commit: str
    directory: Path
    files: tuple[RepositoryFile, ...]
    is_remote: bool

    def read(self, path: str) -> bytes | None:
        """Read a small file, after downloading it if necessary.

        Returns: None if the repository has no such file, or it is not in the cache and
            may not be requested.

        Raises:
            HubError: the file cannot be downloaded.
        """
        file = next((file for file in self.files if file.path == path), None)
        if file is None:
            return None
        local_file = self.directory / path
        is_present = local_file.is_file()
        if not is_present and not self.is_remote:
            return None
        if (local_file.stat().st_size if is_present else file.size) > MAX_METADATA_BYTES:
            raise HubError(
                f"{path} of {self.id} has more than {MAX_METADATA_BYTES >> 20} MiB; choose another "
                f"repository"
            )
        if not is_present:
            self._fetch(file)
        return local_file.read_bytes()

    def _fetch(self, file: RepositoryFile) -> None:
        from .hub_client import HubClient  # noqa: PLC0415 - see `dragoman.hub`

        with translate_errors(self.id), HubClient() as client:
            BlobDownload(client, self.id, self.commit, threading.Event()).fetch(file)
            link_blob(get_cache_folder(self.id), self.commit, file)


def find_cached_repository(reference: ModelReference) -> Repository | None:
    """Find the repository in the cache, without any request; None if nothing of this
    revision is there.
    """
    storage = get_cache_folder(reference.repository)
    revision = reference.revision or DEFAULT_REVISION
    commit = revision
    # The hub's cache records in refs/ to which commit a branch or tag pointed at its
    # last download.
    if not _COMMIT.fullmatch(revision):
        commit = read_revision(storage, revision) or ""
    directory = storage / "snapshots" / commit
    if not _COMMIT.fullmatch(commit) or not directory.is_dir():
        return None
    files = _read_tree(reference.repository, commit) or tuple(
        RepositoryFile(path.relative_to(directory).as_posix(), path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    )
    return Repository(reference.repository, revision, commit, directory, files, is_remote=False)


def _read_tree(repository: str, commit: str) -> tuple[RepositoryFile, ...]:
    """Return the list of a commit's files that huggingface_hub has cached; () if there
    is none.

    It distinguishes a complete snapshot from an interrupted download.
    """
    try:
        from huggingface_hub import get_cached_repo_tree  # noqa: PLC0415 - since version 2
        from huggingface_hub.errors import CachedRepoTreeNotFoundError  # noqa: PLC0415 - as above
    except ImportError:
        return ()
    try:
        entries = get_cached_repo_tree(repository, revision=commit)
    except CachedRepoTreeNotFoundError:
        return ()
    return tuple(
        RepositoryFile(entry.path, entry.size) for entry in entries if is_inside(entry.path)
    )


def open_repository(reference: ModelReference) -> Repository:
    """Request the commit of a revision and its files from the hub. Blocking; one
    request to the Hugging Face hub.

    Raises:
        HubError: the repository does not exist or is not accessible, or the hub cannot
            be reached.
    """
    from .hub_client import HubClient  # noqa: PLC0415 - see `dragoman.hub`

    name = reference.repository
    revision = reference.revision or DEFAULT_REVISION
    with translate_errors(name):
        storage = get_cache_folder(name)
        _check_offline_commits(name, storage, revision)
        with HubClient() as client:
            listing = _decode_listing(name, client.fetch_file_list(name, revision))
    commit = listing.sha
    if _COMMIT.fullmatch(revision) and commit != revision:
        raise HubError(
            f"the hub lists the commit {commit} of {name} instead of {revision}; check HF_ENDPOINT"
        )
    # Paths become paths in the cache. The hub guarantees their form; another endpoint
    # may not.
    files = {
        entry.rfilename: entry.describe()
        for entry in listing.siblings
        if is_inside(entry.rfilename)
    }
    if not files:
        raise HubError(f"{name} is empty; choose another repository")
    directory = storage / "snapshots" / commit
    return Repository(name, revision, commit, directory, tuple(files.values()), is_remote=True)


_Size = Annotated[int, Meta(ge=0, lt=1 << 60)]
_Sha1 = Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")]
_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _LargeFile(Struct):
    """A file outside of git."""

    sha256: _Sha256
    size: _Size


class _ListedFile(Struct, rename={"blob_id": "blobId"}):
    """A file in the hub's list.

    blob_id: git's id of the file, or of the pointer to a large file.
    """

    rfilename: str
    size: _Size | None = None
    blob_id: _Sha1 | None = None
    lfs: _LargeFile | None = None

    def describe(self) -> RepositoryFile:
        if self.lfs is not None:
            return RepositoryFile(self.rfilename, self.lfs.size, self.lfs.sha256)
        # Git's id contains the size: without it, nothing can be verified.
        blob_id = None if self.size is None else self.blob_id
        return RepositoryFile(self.rfilename, self.size or 0, blob_id=blob_id)


class _Listing(Struct):
    """The hub's description of a repository at one commit."""

    sha: _Sha1
    siblings: list[_ListedFile] = []


def _decode_listing(name: str, answer: bytes) -> _Listing:
    from huggingface_hub import constants  # noqa: PLC0415 - takes a fifth of a second

    try:
        return msgspec.json.decode(answer, type=_Listing)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HubError(
            f"{constants.ENDPOINT} does not list {name} as a Hugging Face hub does ({error}); "
            f"check HF_ENDPOINT"
        ) from error


def _check_offline_commits(name: str, storage: Path, revision: str) -> None:
    """Raise HubError if requests are forbidden, and the cache has commits but does not
    record which of them is the revision.
    """
    from huggingface_hub import constants  # noqa: PLC0415 - takes a fifth of a second

    if not constants.HF_HUB_OFFLINE or read_revision(storage, revision) is not None:
        return
    commits = sorted(
        path.name for path in storage.glob("snapshots/*") if _COMMIT.fullmatch(path.name)
    )
    if commits and revision not in commits:
        raise HubError(
            f"the cache does not record which commit of {name} is {revision}, and HF_HUB_OFFLINE "
            f"is set; name the commit, as in `{name}@{commits[-1]}`, or unset it and run "
            f"`dragoman pull {name}`"
        )
