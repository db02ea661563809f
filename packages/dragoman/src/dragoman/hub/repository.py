"""Repositories at one commit, read from a hub or only from the shared cache, and the
models in that cache.

`open_repository` and `find_cached_repository` are for both hubs; other functions
without `modelscope` in their name are for the Hugging Face hub.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from .model_files import (
    DownloadPlan,
    Hub,
    HubError,
    INDEX,
    METADATA_SUFFIXES,
    ModelReference,
    RepositoryFile,
    find_gguf_models,
    is_inside,
    translate_errors,
)

# Git commits (SHA-1) and checksums of files (SHA-256) in hexadecimal digits.
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
DEFAULT_REVISION = "main"
MODELSCOPE_REVISION = "master"
OnProgress = Callable[[str, int], None]
"""Called with the path of a file and the bytes that have arrived since the last call.
"""


class DownloadCancelled(Exception):
    """The download was cancelled. It can be resumed."""


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


# The models in the shared cache.


class LastUse(Struct, frozen=True, omit_defaults=True):
    """The last use of a model.

    used_at: Unix seconds.
    engine: the engine that served it.
    max_model_len: its context length with that engine, in tokens.
    """

    used_at: float
    engine: str | None = None
    max_model_len: int | None = None


class LocalModel(Struct, frozen=True):
    """A model in the cache.

    name: the name for MODEL: `org/name`, or `org/name:QUANT` for a GGUF file.
    size: bytes of its files.
    revision: the branch or tag, or else the commit.
    directory: the directory of its files.
    file: the GGUF file in it; None for safetensors.
    usage: None if this server never used it.
    """

    name: str
    size: int
    revision: str
    commit: str
    directory: Path
    file: str | None = None
    usage: LastUse | None = None


def list_local_models(state: Path) -> list[LocalModel]:
    """List the models in the cache that have weights to load.

    state: the directory with the usage records.
    """
    from huggingface_hub import constants, scan_cache_dir  # noqa: PLC0415 - takes a fifth of a second
    from huggingface_hub.errors import CacheNotFound  # noqa: PLC0415 - as above

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return []
    records = _read_records(state)
    models: list[LocalModel] = []
    for repository in sorted(cache.repos, key=lambda repository: repository.repo_id):
        # The cache also contains data sets and spaces.
        if repository.repo_type != "model":
            continue
        for revision in repository.revisions:
            branch = min(revision.refs, default=revision.commit_hash)
            cached = find_cached_repository(
                ModelReference(repository.repo_id, revision=revision.commit_hash)
            )
            if cached is None:
                continue
            commit = cached.commit
            directory = cached.directory
            # A snapshot may be partial: only some files were selected, or a download
            # was cancelled.
            present = [file for file in cached.files if (directory / file.path).is_file()]
            for model in (model for model in find_gguf_models(present) if model.has_all_parts):
                name = ModelReference(
                    cached.id, model.quantization or model.stem.rpartition("/")[2]
                ).name
                path = model.files[0].path
                usage = records.get(name)
                models.append(LocalModel(name, model.size, branch, commit, directory, path, usage))
            weights = sum(file.size for file in present if file.path.endswith(".safetensors"))
            if weights and _has_indexed_files(directory):
                usage = records.get(cached.id)
                models.append(
                    LocalModel(cached.id, weights, branch, commit, directory, usage=usage)
                )
    return models


class _Index(Struct):
    weight_map: dict[str, str]


def _has_indexed_files(directory: Path) -> bool:
    """Whether all files that the index of a model lists are there; a model of one file
    has no index.
    """
    try:
        weight_map = msgspec.json.decode((directory / INDEX).read_bytes(), type=_Index).weight_map
    except FileNotFoundError:
        return True
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return all((directory / path).is_file() for path in weight_map.values())


def remove_local_model(reference: ModelReference) -> int:
    """Remove all revisions of a model from the cache. Return the number of bytes freed.

    If the reference names a quantization, only its files are removed; otherwise also
    the remains of interrupted downloads.

    Raises:
        HubError: the model is not in the cache, or the reference names a revision.
    """
    if reference.revision is not None:
        name = reference.name
        raise HubError(
            f"all revisions of {name} are removed together, because they share files: `dragoman "
            f"rm {name}`"
        )
    storage = get_cache_folder(reference.repository)
    if not storage.is_dir():
        raise HubError(
            f"{reference.repository} is not in {storage.parent}; `dragoman models` lists what is"
        )
    if reference.quantization is None:
        freed = sum(
            file.stat().st_size
            for file in storage.rglob("*")
            if file.is_file() and not file.is_symlink()
        )
        shutil.rmtree(storage)
        shutil.rmtree(storage.parent / ".locks" / storage.name, ignore_errors=True)
        return freed
    freed = 0
    for link in sorted(storage.glob("snapshots/*/**/*.gguf")):
        models = find_gguf_models([RepositoryFile(link.name, 0)])
        if any(
            reference.quantization.upper() in (model.quantization, model.stem.upper())
            for model in models
        ):
            # The cache of huggingface_hub links snapshots to blobs; removing only the
            # link would free nothing.
            blob = link.resolve()
            freed += blob.stat().st_size if blob.exists() else 0
            link.unlink()
            blob.unlink(missing_ok=True)
    if not freed:
        raise HubError(
            f"{reference.name} is not in {storage.parent}; `dragoman models` lists what is"
        )
    return freed


def record_use(state: Path, name: str, use: LastUse) -> None:
    """Record the use of a model. The last of concurrent writers wins: at most a date is
    lost.
    """
    records = {**_read_records(state), name: use}
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = state / f".models.{secrets.token_hex(8)}"
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(records)))
    os.replace(draft, state / "models.json")


def _read_records(state: Path) -> dict[str, LastUse]:
    try:
        return msgspec.json.decode((state / "models.json").read_bytes(), type=dict[str, LastUse])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The file is missing, or was written by another version. The dates are only
        # informative.
        return {}


# Repositories of ModelScope: its package `modelscope` downloads them into its own
# cache.


def _build_modelscope_repository(
    reference: ModelReference,
    directory: Path,
    files: tuple[RepositoryFile, ...],
    *,
    is_remote: bool,
) -> Repository:
    revision = _get_modelscope_revision(reference)
    return Repository(
        reference.repository, revision, revision, directory, files, is_remote, hub="modelscope"
    )


def find_modelscope_files(
    reference: ModelReference,
) -> tuple[Path, tuple[RepositoryFile, ...]] | None:
    """Find the directory of a model in ModelScope's cache, and its files; None if
    nothing is there. Sends no request.

    Raises:
        HubError: the package is not installed.
    """
    library = _import_modelscope()
    try:
        path = library.snapshot_download(
            reference.repository, _get_modelscope_revision(reference), local_files_only=True
        )
    except Exception:
        # The type of the error for a missing model differs between versions.
        return None
    directory = Path(path)
    files = tuple(
        RepositoryFile(file.relative_to(directory).as_posix(), file.stat().st_size)
        for file in sorted(directory.rglob("*"))
        if file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(directory).parts)
    )
    return (directory, files) if files else None


def fetch_modelscope_metadata(reference: ModelReference) -> tuple[Path, tuple[RepositoryFile, ...]]:
    """Request the list of a model's files from ModelScope, and download its
    configuration.

    Returns: the directory and the files.

    Raises:
        HubError: the model does not exist, or ModelScope cannot be reached.
    """
    library = _import_modelscope()
    revision = _get_modelscope_revision(reference)
    with _translate_modelscope_errors(reference.repository):
        api = import_module("modelscope.hub.api").HubApi()
        entries: list[dict[str, Any]] = api.get_model_files(
            reference.repository, revision=revision, recursive=True
        )
        files = tuple(
            RepositoryFile(entry["Path"], int(entry.get("Size") or 0), entry.get("Sha256") or None)
            for entry in entries
            if entry.get("Type") != "tree" and is_inside(entry["Path"])
        )
        # Downloading the small files returns the directory. They come first, so that
        # weights never lack their metadata.
        small = [file.path for file in files if file.path.endswith((*METADATA_SUFFIXES, ".md"))]
        directory = library.snapshot_download(
            reference.repository, revision, allow_file_pattern=small or ["README.md"]
        )
    return Path(directory), files


def download_from_modelscope(
    plan: DownloadPlan, on_progress: OnProgress, cancelled: threading.Event
) -> None:
    """Download the files of a plan. Blocking.

    Raises:
        HubError: a file cannot be downloaded.
        DownloadCancelled: `cancelled` was set.
    """
    library = _import_modelscope()
    callback: Any = import_module("modelscope.hub.callback").ProgressCallback

    class Report(callback):
        def update(self, size: int) -> None:
            if cancelled.is_set():
                raise DownloadCancelled
            on_progress(self.filename, size)

        def end(self) -> None: ...

    paths = [file.path for file in plan.find_missing()]
    with _translate_modelscope_errors(plan.repository):
        # The projector comes first, so that a directory that contains the model is
        # complete.
        for group in ([path for path in paths if path == plan.projector], paths):
            try:
                if group:
                    library.snapshot_download(
                        plan.repository,
                        plan.revision,
                        allow_file_pattern=group,
                        progress_callbacks=[Report],
                    )
            except Exception:
                if cancelled.is_set():
                    raise DownloadCancelled from None
                raise
    if missing := plan.find_missing():
        raise HubError(
            f"{missing[0].path} of {plan.repository} did not arrive; run the command again"
        )


def _get_modelscope_revision(reference: ModelReference) -> str:
    return reference.revision or MODELSCOPE_REVISION


def _import_modelscope() -> Any:  # noqa: ANN401 - the package has no types
    if find_spec("modelscope") is None:
        raise HubError(
            "`modelscope:` needs the package modelscope, which is not installed: pip install "
            "modelscope"
        )
    return import_module("modelscope")


@contextmanager
def _translate_modelscope_errors(name: str) -> Generator[None]:
    try:
        yield
    except (HubError, DownloadCancelled):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise HubError(
            f"{name} cannot be downloaded from ModelScope ({reason}); check the name and the "
            f"network"
        ) from error
