"""Repositories at one commit, read from a hub or only from the shared cache.

`open_repository` serves both hubs; what is particular to ModelScope is in `modelscope`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .errors import HubError, translate_errors
from .file_selection import RepositoryFile, is_inside
from .model_reference import Hub, ModelReference
from .modelscope import fetch_modelscope_metadata, find_modelscope_files, get_modelscope_revision

# Git commits (SHA-1) and checksums of files (SHA-256) in hexadecimal digits.
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit.

    id: `org/name`.
    revision: the branch, tag or commit that was requested.
    directory: the cache's directory for the files of this commit; need not exist.
    is_remote: whether files that are not in the cache may be requested from the hub.
    hub: the hub of the repository. With ModelScope, all configuration files are already
        in the cache.
    """

    id: str
    revision: str
    commit: str
    directory: Path
    files: tuple[RepositoryFile, ...]
    is_remote: bool
    hub: Hub = "huggingface"

    def read(self, path: str) -> bytes | None:
        """Read a small file, after downloading it if necessary.

        Returns: None if the repository has no such file, or it is not in the cache and
            may not be requested.

        Raises:
            HubError: the file cannot be downloaded.
        """
        if not any(file.path == path for file in self.files):
            return None
        local_file = self.directory / path
        if not local_file.is_file():
            if not self.is_remote or self.hub != "huggingface":
                return None
            fetch_file(self.id, self.commit, path)
        return local_file.read_bytes()


def get_cache_folder(repository: str) -> Path:
    """Find the repository's folder in the shared cache; it need not exist."""
    from huggingface_hub import constants  # noqa: PLC0415 - takes a fifth of a second
    from huggingface_hub.file_download import repo_folder_name  # noqa: PLC0415 - as above

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")


def fetch_file(repository: str, commit: str, path: str) -> None:
    """Download a file into the cache, and link it into the commit's directory. Raises
    HubError.
    """
    library: Any = import_module("huggingface_hub")
    library.utils.disable_progress_bars()
    with translate_errors(repository):
        library.hf_hub_download(repository, path, revision=commit)


def find_cached_repository(reference: ModelReference) -> Repository | None:
    """Find the repository in the cache, without any request; None if nothing of this
    revision is there.
    """
    if reference.hub == "modelscope":
        cached = find_modelscope_files(reference)
        return (
            None
            if cached is None
            else _build_modelscope_repository(reference, *cached, is_remote=False)
        )
    storage = get_cache_folder(reference.repository)
    revision = reference.revision or DEFAULT_REVISION
    commit = revision
    # The hub's cache records in refs/ to which commit a branch or tag pointed at its
    # last download.
    record = storage / "refs" / revision
    if not _COMMIT.fullmatch(revision) and record.is_file():
        commit = record.read_text(encoding="ascii").strip()
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
    return tuple(RepositoryFile(entry.path, entry.size) for entry in entries)


def open_repository(reference: ModelReference) -> Repository:
    """Request the commit of a revision and its files from the hub. Blocking; one
    request to the Hugging Face hub.

    Raises:
        HubError: the repository does not exist or is not accessible, or the hub cannot
            be reached.
    """
    if reference.hub == "modelscope":
        return _build_modelscope_repository(
            reference, *fetch_modelscope_metadata(reference), is_remote=True
        )
    from huggingface_hub import HfApi  # noqa: PLC0415 - takes a fifth of a second

    revision = reference.revision or DEFAULT_REVISION
    with translate_errors(reference.repository):
        info = HfApi(library_name="dragoman").model_info(
            reference.repository, revision=revision, files_metadata=True
        )
    if info.sha is None or not _COMMIT.fullmatch(info.sha) or not info.siblings:
        raise HubError(f"{reference.repository} is empty; choose another repository")
    # The file path and its SHA-256 become paths in the cache. The hub guarantees their
    # form; another endpoint may not.
    files = tuple(
        RepositoryFile(
            file.rfilename, file.size or 0, None if file.lfs is None else file.lfs.sha256
        )
        for file in info.siblings
        if is_inside(file.rfilename) and (file.lfs is None or _SHA256.fullmatch(file.lfs.sha256))
    )
    directory = get_cache_folder(reference.repository) / "snapshots" / info.sha
    return Repository(reference.repository, revision, info.sha, directory, files, is_remote=True)


def _build_modelscope_repository(
    reference: ModelReference,
    directory: Path,
    files: tuple[RepositoryFile, ...],
    *,
    is_remote: bool,
) -> Repository:
    revision = get_modelscope_revision(reference)
    return Repository(
        reference.repository, revision, revision, directory, files, is_remote, hub="modelscope"
    )
