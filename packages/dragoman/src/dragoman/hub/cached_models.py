"""The models in the shared cache, with their last use."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

import msgspec
from msgspec import Struct

from .errors import HubError
from .file_selection import INDEX, RepositoryFile, is_inside
from .gguf_files import find_gguf_models
from .hub_cache import get_cache_folder
from .model_reference import ModelReference
from .repository import find_cached_repository


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
    return all(
        is_inside(path) and (directory / path).is_file() for path in set(weight_map.values())
    )


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
