"""A repository at one commit: from the hub, or from the shared cache alone without any request."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from . import modelscope
from .errors import HubError, translate_errors
from .reference import Hub, ModelReference
from .selection import RepositoryFile, is_inside

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit.

    id: `org/name`.
    revision: the branch, tag or commit that was requested.
    directory: of this commit's files in the cache; need not exist.
    is_remote: whether the hub may be asked for files that are not in the cache.
    hub: that has it. Of ModelScope's repositories all configuration files are in the cache.
    """

    id: str
    revision: str
    commit: str
    directory: Path
    files: tuple[RepositoryFile, ...]
    is_remote: bool
    hub: Hub = "huggingface"

    def read(self, path: str) -> bytes | None:
        """Read a small file, after downloading it if necessary; None if there is none.

        Raises:
            HubError: it cannot be downloaded.
        """
        if not any(file.path == path for file in self.files):
            return None
        local_file = self.directory / path
        if not local_file.is_file():
            if not self.is_remote or self.hub != "huggingface":
                return None
            fetch_small_file(self.id, self.commit, path)
        return local_file.read_bytes()


def find_storage(repository: str) -> Path:
    """Find the repository's folder in the shared cache; it need not exist."""
    from huggingface_hub import constants  # noqa: PLC0415 - takes a fifth of a second
    from huggingface_hub.file_download import repo_folder_name  # noqa: PLC0415 - as above

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")


def fetch_small_file(repository: str, commit: str, path: str) -> None:
    """Download a file into the cache, and link it into the commit's directory. Raises HubError."""
    library: Any = import_module("huggingface_hub")
    library.utils.disable_progress_bars()
    with translate_errors(repository):
        library.hf_hub_download(repository, path, revision=commit)


def find_cached_repository(reference: ModelReference) -> Repository | None:
    """Find the repository in the cache, without any request; None if nothing of this revision is there."""
    if reference.hub == "modelscope":
        found = modelscope.find_files(reference)
        return None if found is None else _build_modelscope_repository(reference, *found, is_remote=False)
    storage = find_storage(reference.repository)
    revision = reference.revision or DEFAULT_REVISION
    # The hub's cache records in refs/ to which commit a branch or tag pointed at its last download.
    commit = revision if _COMMIT.fullmatch(revision) else _read_commit(storage, revision)
    directory = None if commit is None else storage / "snapshots" / commit
    if commit is None or directory is None or not directory.is_dir():
        return None
    files = _read_tree(reference.repository, commit) or tuple(
        RepositoryFile(path.relative_to(directory).as_posix(), path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    )
    return Repository(reference.repository, revision, commit, directory, files, is_remote=False)


def _read_commit(storage: Path, revision: str) -> str | None:
    """The commit of a branch or a tag, as of its last download."""
    file = storage / "refs" / revision
    text = file.read_text(encoding="ascii").strip() if file.is_file() else ""
    return text if _COMMIT.fullmatch(text) else None


def _read_tree(repository: str, commit: str) -> tuple[RepositoryFile, ...]:
    """The list of files that huggingface_hub keeps of a commit; empty where it has none.

    It tells a complete snapshot from one whose download was interrupted.
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
    """Ask the hub for the commit of a revision and its files. Blocking; one request to the Hugging Face hub.

    Raises:
        HubError: it does not exist, is not accessible, or the hub cannot be reached.
    """
    if reference.hub == "modelscope":
        return _build_modelscope_repository(reference, *modelscope.list_files(reference), is_remote=True)
    from huggingface_hub import HfApi  # noqa: PLC0415 - takes a fifth of a second

    revision = reference.revision or DEFAULT_REVISION
    with translate_errors(reference.repository):
        info = HfApi(library_name="dragoman").model_info(reference.repository, revision=revision, files_metadata=True)
    if info.sha is None or not _COMMIT.fullmatch(info.sha) or not info.siblings:
        raise HubError(f"{reference.repository} is empty; choose another repository")
    # Both names become paths in the cache. The hub guarantees their form; another endpoint may not.
    files = tuple(
        RepositoryFile(file.rfilename, file.size or 0, None if file.lfs is None else file.lfs.sha256)
        for file in info.siblings
        if is_inside(file.rfilename) and (file.lfs is None or _SHA256.fullmatch(file.lfs.sha256))
    )
    directory = find_storage(reference.repository) / "snapshots" / info.sha
    return Repository(reference.repository, revision, info.sha, directory, files, is_remote=True)


def _build_modelscope_repository(
    reference: ModelReference, directory: Path, files: tuple[RepositoryFile, ...], *, is_remote: bool
) -> Repository:
    revision = reference.revision or modelscope.DEFAULT_REVISION
    return Repository(reference.repository, revision, revision, directory, files, is_remote, hub="modelscope")
