"""HTTP requests to a hub. The hub may be a stranger's: the size, the content coding,
the redirects and the duration of an answer are bounded, and no header names a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from dragoman_http import BlockingHttpClient, BlockingResponse, ClientTimeouts, HttpClient

from .errors import HubError, build_status_error
from .file_selection import MAX_METADATA_BYTES

MAX_ANSWER_SECONDS = 120.0
"""Time for a list of files."""
MAX_REDIRECTS = 5
TIMEOUT_SECONDS = 30.0
"""Time without a byte after which a connection counts as lost."""


class HubClient:
    """A client of the Hugging Face hub, or of a mirror, for any number of threads. A
    context manager.

    monotonic: returns seconds, for `MAX_ANSWER_SECONDS`.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        utils: Any = import_module("huggingface_hub.utils")
        self._headers: dict[str, str] = utils.build_hf_headers(library_name="dragoman")
        self._monotonic = monotonic
        # Without compression: a range counts bytes of the encoded body, so a resumed
        # file would be damaged, and a few bytes could become gigabytes.
        client = HttpClient(ClientTimeouts(TIMEOUT_SECONDS, TIMEOUT_SECONDS), decodes_bodies=False)
        self._client = BlockingHttpClient(client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def fetch_file_list(self, repository: str, revision: str) -> bytes:
        """Request the commit of a revision and the list of its files, as JSON:
        https://huggingface.co/docs/hub/api.

        Raises:
            HubError: the answer is an error, or too long.
            HttpClientError, ValueError: the hub cannot be reached.
        """
        from huggingface_hub import constants  # noqa: PLC0415 - takes a fifth of a second

        url = f"{constants.ENDPOINT}/api/models/{repository}/revision/{quote(revision, safe='')}"
        deadline = self._monotonic() + MAX_ANSWER_SECONDS
        answer = bytearray()
        with self._stream(repository, f"{url}?blobs=true") as response:
            for chunk in response:
                answer += chunk
                if len(answer) > MAX_METADATA_BYTES:
                    raise HubError(
                        f"the list of files of {repository} has more than "
                        f"{MAX_METADATA_BYTES >> 20} MiB; choose another repository"
                    )
                if self._monotonic() > deadline:
                    raise HubError(
                        f"{constants.ENDPOINT} took more than {MAX_ANSWER_SECONDS:.0f} s to list "
                        f"the files of {repository}; retry later"
                    )
        return bytes(answer)

    @contextmanager
    def stream_file(
        self, repository: str, commit: str, path: str, start: int
    ) -> Generator[BlockingResponse]:
        """Request a file from a byte on. The status of the response is 206, or 200 if
        the hub sends the whole file.

        Raises: as `fetch_file_list`.
        """
        from huggingface_hub import hf_hub_url  # noqa: PLC0415 - takes a fifth of a second

        headers = {"range": f"bytes={start}-"} if start else {}
        url = hf_hub_url(repository, path, revision=commit)
        with self._stream(repository, url, headers) as response:
            yield response

    @contextmanager
    def _stream(
        self, repository: str, url: str, headers: Mapping[str, str] | None = None
    ) -> Generator[BlockingResponse]:
        from huggingface_hub import constants  # noqa: PLC0415 - takes a fifth of a second

        if constants.HF_HUB_OFFLINE:
            raise HubError(
                f"{repository} is not completely downloaded, and HF_HUB_OFFLINE is set; unset it "
                f"and run `dragoman pull {repository}`"
            )
        # The token is not sent on to another origin, such as the CDN.
        with self._client.get_following_redirects(
            url, {**self._headers, **(headers or {})}, max_redirects=MAX_REDIRECTS
        ) as response:
            if response.status not in (200, 206):
                raise build_status_error(repository, response.status, response.headers)
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise HubError(
                    f"{constants.ENDPOINT} sends {repository} with a content coding that was not "
                    f"requested; check HF_ENDPOINT and the proxy settings"
                )
            yield response
