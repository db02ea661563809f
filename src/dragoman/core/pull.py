"""The interface of a model downloader, which `/api/pull` uses. Knows no hub and no wire format."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct


class PullProgress(Struct, frozen=True, omit_defaults=True):
    """One report of a download, as a client sees it.

    status: what is being done, such as `pulling manifest`, `pulling 8eeb52dfb3bb`, `verifying sha256 digest`; the last
    report of a complete download has `success`.
    digest: of the file that is being downloaded: `sha256:` and 64 hexadecimal digits.
    total, completed: bytes of that file.
    """

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None


class ModelPuller(Protocol):
    """Downloads models by name. What is downloaded can be served; whether it is served at once is its own decision."""

    def pull(self, model: str) -> AsyncGenerator[PullProgress]:
        """Download a model, and report the progress. Closing the generator cancels the download.

        model: as the client named it, such as `org/name` or `hf.co/org/name:Q4_K_M`.

        Raises:
            NotFound: there is no such model.
            RequestError: it cannot be served here.
            EngineError: the download failed.
        """
        ...
