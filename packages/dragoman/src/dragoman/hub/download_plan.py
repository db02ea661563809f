"""The files of a model that are to be downloaded."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from .file_selection import RepositoryFile


class DownloadPlan(Struct, frozen=True):
    """The files of a model, and where they are in the cache.

    repository: `org/name`.
    revision: the branch, tag or commit that was requested.
    commit: the commit that it is.
    directory: of this commit's files.
    files: all that are needed, downloaded or not.
    entry: path of the GGUF file to load, relative to the directory; None loads the
        directory.
    projector: path of the GGUF file with the multimodal projector.
    """

    repository: str
    revision: str
    commit: str
    directory: Path
    files: tuple[RepositoryFile, ...]
    entry: str | None = None
    projector: str | None = None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def weights_size(self) -> int:
        return sum(
            file.size for file in self.files if file.path.endswith((".safetensors", ".gguf"))
        )

    def find_missing(self) -> tuple[RepositoryFile, ...]:
        return tuple(file for file in self.files if not (self.directory / file.path).is_file())

    @property
    def target(self) -> Path:
        """The file or directory to load."""
        return self.directory if self.entry is None else self.directory / self.entry
