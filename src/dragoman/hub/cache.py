"""The models in the shared cache: list and remove them, and record when this server last used them."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from .errors import HubError
from .reference import ModelReference
from .repository import Repository, find_cached_repository, find_storage
from .selection import RepositoryFile, find_gguf_models


class UsageRecord(Struct, frozen=True, omit_defaults=True):
    """The last use of a model.

    used_at: Unix seconds.
    engine: that served it.
    max_model_len: its context length there, in tokens.
    """

    used_at: float
    engine: str | None = None
    max_model_len: int | None = None


class LocalModel(Struct, frozen=True):
    """A model in the cache.

    name: as in MODEL: `org/name`, or `org/name:QUANT` of a GGUF file.
    size: bytes of its files.
    revision: the branch or tag, or else the commit.
    directory: of its files.
    file: the GGUF file in it; None for safetensors.
    usage: None if this server never used it.
    """

    name: str
    size: int
    revision: str
    commit: str
    directory: Path
    file: str | None = None
    usage: UsageRecord | None = None


def list_local_models(state: Path) -> list[LocalModel]:
    """List the models in the cache that have weights to load. state: the directory with the records of use."""
    from huggingface_hub import constants, scan_cache_dir  # noqa: PLC0415 - takes a fifth of a second
    from huggingface_hub.errors import CacheNotFound  # noqa: PLC0415 - as above

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return []
    records = _read_records(state)
    models: list[LocalModel] = []
    for repository in sorted(cache.repos, key=lambda repository: repository.repo_id):
        # The cache is shared with data sets and spaces.
        if repository.repo_type != "model":
            continue
        for revision in repository.revisions:
            branch = min(revision.refs, default=revision.commit_hash)
            found = find_cached_repository(ModelReference(repository.repo_id, revision=revision.commit_hash))
            for model in () if found is None else _find_loadable(found, branch):
                models.append(msgspec.structs.replace(model, usage=records.get(model.name)))
    return models


def _find_loadable(repository: Repository, revision: str) -> Iterator[LocalModel]:
    """The models in a commit's directory: each GGUF model, and the safetensors together."""
    # A snapshot may be partial: only some files were selected, or a download was cancelled.
    present = [file for file in repository.files if (repository.directory / file.path).is_file()]
    for model in find_gguf_models(present):
        name = ModelReference(repository.id, model.quantization or model.stem).name
        path = model.files[0].path
        yield LocalModel(name, model.size, revision, repository.commit, repository.directory, path)
    weights = sum(file.size for file in present if file.path.endswith(".safetensors"))
    if weights:
        yield LocalModel(repository.id, weights, revision, repository.commit, repository.directory)


def remove_local_model(reference: ModelReference) -> int:
    """Remove a model from the cache, with what is left of interrupted downloads. Return the bytes that it frees.

    A quantization removes its files alone.

    Raises:
        HubError: it is not in the cache.
    """
    storage = find_storage(reference.repository)
    if not storage.is_dir():
        raise HubError(f"{reference.repository} is not in {storage.parent}; `dragoman models` lists what is")
    if reference.quantization is None:
        freed = sum(file.stat().st_size for file in storage.rglob("*") if file.is_file() and not file.is_symlink())
        shutil.rmtree(storage)
        shutil.rmtree(storage.parent / ".locks" / storage.name, ignore_errors=True)
        return freed
    freed = 0
    for link in sorted(storage.glob("snapshots/*/**/*.gguf")):
        models = find_gguf_models([RepositoryFile(link.name, 0)])
        if any(reference.quantization.upper() in (model.quantization, model.stem.upper()) for model in models):
            # The cache of huggingface_hub links snapshots to blobs; removing only the link would free nothing.
            blob = link.resolve()
            freed += blob.stat().st_size if blob.exists() else 0
            link.unlink()
            blob.unlink(missing_ok=True)
    if not freed:
        raise HubError(f"{reference.name} is not in {storage.parent}; `dragoman models` lists what is")
    return freed


def note_use(state: Path, name: str, record: UsageRecord) -> None:
    """Record the use of a model. The last of concurrent writers wins, which costs a date at most."""
    records = {**_read_records(state), name: record}
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = state / f".models.{secrets.token_hex(8)}"
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(records)))
    os.replace(draft, state / "models.json")


def _read_records(state: Path) -> dict[str, UsageRecord]:
    try:
        return msgspec.json.decode((state / "models.json").read_bytes(), type=dict[str, UsageRecord])
    except (OSError, msgspec.DecodeError):
        # Missing, or of another version: the dates are a convenience.
        return {}
