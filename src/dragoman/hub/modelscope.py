"""Repositories of ModelScope, by its own package `modelscope`, into its own cache.

The package resumes interrupted files and checks their SHA-256. It names no commits: the revision stands for one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import HubError
from .reference import ModelReference
from .selection import METADATA_SUFFIXES, DownloadPlan, RepositoryFile, is_inside

DEFAULT_REVISION = "master"
OnProgress = Callable[[str, int], None]
"""Called with the path of a file and the bytes that have arrived since the last call."""


class Cancelled(Exception):
    """The download was cancelled."""


def find_files(reference: ModelReference) -> tuple[Path, tuple[RepositoryFile, ...]] | None:
    """The directory of a model in ModelScope's cache, and its files; None if there is none. No request is sent.

    Raises:
        HubError: the package is not installed.
    """
    library = _import_library()
    try:
        found = library.snapshot_download(reference.repository, _get_revision(reference), local_files_only=True)
    except Exception:
        # Which error means that nothing is there differs between versions.
        return None
    directory = Path(found)
    files = tuple(
        RepositoryFile(path.relative_to(directory).as_posix(), path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(directory).parts)
    )
    return (directory, files) if files else None


def list_files(reference: ModelReference) -> tuple[Path, tuple[RepositoryFile, ...]]:
    """Ask ModelScope for the files of a model, and download its configuration. Return the directory and the files.

    Raises:
        HubError: there is no such model, or it cannot be reached.
    """
    library, revision = _import_library(), _get_revision(reference)
    with _translate_errors(reference.repository):
        api = import_module("modelscope.hub.api").HubApi()
        entries: list[dict[str, Any]] = api.get_model_files(reference.repository, revision=revision, recursive=True)
        files = tuple(
            RepositoryFile(entry["Path"], int(entry.get("Size") or 0), entry.get("Sha256") or None)
            for entry in entries
            if entry.get("Type") != "tree" and is_inside(entry["Path"])
        )
        # The download of what is small gives the directory. It comes first, so that weights are never there without it.
        small = [file.path for file in files if file.path.endswith((*METADATA_SUFFIXES, ".md"))]
        directory = library.snapshot_download(reference.repository, revision, allow_file_pattern=small or ["README.md"])
    return Path(directory), files


def fetch(plan: DownloadPlan, on_progress: OnProgress, cancelled: threading.Event) -> None:
    """Download the files of a plan. Blocking.

    Raises:
        HubError: they cannot be downloaded.
        Cancelled: `cancelled` was set.
    """
    library = _import_library()
    callback: Any = import_module("modelscope.hub.callback").ProgressCallback

    class Report(callback):
        def update(self, size: int) -> None:
            if cancelled.is_set():
                raise Cancelled
            on_progress(self.filename, size)

        def end(self) -> None: ...

    paths = [file.path for file in plan.find_missing()]
    with _translate_errors(plan.repository):
        # The projector first: a directory that has the model has everything.
        for group in ([path for path in paths if path == plan.projector], paths):
            try:
                if group:
                    library.snapshot_download(
                        plan.repository, plan.revision, allow_file_pattern=group, progress_callbacks=[Report]
                    )
            except Exception:
                if cancelled.is_set():
                    raise Cancelled from None
                raise
    if missing := plan.find_missing():
        raise HubError(f"{missing[0].path} of {plan.repository} did not arrive; run the command again")


def _get_revision(reference: ModelReference) -> str:
    return reference.revision or DEFAULT_REVISION


def _import_library() -> Any:  # noqa: ANN401 - it has no types
    if find_spec("modelscope") is None:
        raise HubError("`modelscope:` needs the package modelscope, which is not installed: pip install modelscope")
    return import_module("modelscope")


@contextmanager
def _translate_errors(name: str) -> Generator[None]:
    try:
        yield
    except (HubError, Cancelled):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise HubError(
            f"{name} cannot be downloaded from ModelScope ({reason}); check the name and the network"
        ) from error
