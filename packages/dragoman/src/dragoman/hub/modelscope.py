"""Downloads from ModelScope, by its own package into its own cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .download_plan import DownloadPlan
from .errors import DownloadCancelled, HubError
from .file_selection import METADATA_SUFFIXES, RepositoryFile, is_inside
from .model_reference import ModelReference

MODELSCOPE_REVISION = "master"


OnProgress = Callable[[str, int], None]
"""Called with the path of a file and the bytes that have arrived since the last call.
"""


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
            reference.repository, get_modelscope_revision(reference), local_files_only=True
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
    revision = get_modelscope_revision(reference)
    with _translate_modelscope_errors(reference.repository):
        api = import_module("modelscope.hub.api").HubApi()
        entries: list[dict[str, Any]] = api.get_model_files(
            reference.repository, revision=revision, recursive=True
        )
        files = tuple(
            RepositoryFile(entry["Path"], int(entry.get("Size") or 0), entry.get("Sha256") or None)
            for entry in entries
            if entry.get("Type") != "tree"
            and is_inside(entry["Path"])
            # The package reads the names of the files that it is to download as
            # patterns.
            and not any(character in entry["Path"] for character in "*?[")
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


def get_modelscope_revision(reference: ModelReference) -> str:
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
