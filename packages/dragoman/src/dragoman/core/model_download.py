"""The interface of a model downloader, which `/api/pull` uses."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct


class PullProgress(Struct, frozen=True, omit_defaults=True):
    """One report of a download, as a client sees it.

    status: the current step, such as `pulling manifest`, `pulling 8eeb52dfb3bb`,
    `verifying sha256 digest`; the last report of a complete download has `success`.
    digest: digest of the file that is being downloaded: `sha256:` and 64 hexadecimal
        digits.
    total, completed: size of that file, and the part of it that has been downloaded, in
        bytes.
    """

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None


class ModelPuller(Protocol):
    """Downloads models by name. A downloaded model can be served; the puller decides
    whether it is served at once.
    """

    def pull(self, model: str) -> AsyncGenerator[PullProgress]:
        """Download a model, and report the progress. Closing the generator cancels the
        download.

        model: as the client named it, such as `org/name` or `hf.co/org/name:Q4_K_M`.

        Raises:
            NotFound: there is no such model.
            RequestError: it cannot be served here.
            EngineError: the download failed.
        """
        ...
