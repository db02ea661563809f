"""The models that an upstream lists, and the requests that find them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from dragoman_http import BlockingHttpClient, HttpClientError

from ...core.encoder_requests import EncodingTask
from ...core.errors import EngineError

T = TypeVar("T")
_MAX_BODY_BYTES = 64 << 20
"""Of a list of models."""


class ModelTasks(Struct, frozen=True):
    """The tasks of a model.

    generates: whether it generates text.
    encoding: its other tasks, in addition to generation or instead of it.
    """

    generates: bool = True
    encoding: frozenset[EncodingTask] = frozenset()


class UpstreamModel(Struct, frozen=True):
    """A model of an upstream.

    max_model_len: context length in tokens; None if the upstream does not report it.
    adapters: names of its loaded LoRA adapters.
    max_tokens: most output tokens; None if the upstream does not report it.
    """

    model: str
    max_model_len: int | None = None
    tasks: ModelTasks = ModelTasks()
    adapters: tuple[str, ...] = ()
    max_tokens: int | None = None


class ModelQueries:
    """Queries to one upstream.

    base_url: its URL.
    headers: those of its kind, with its key.
    """

    def __init__(self, client: BlockingHttpClient, base_url: str, headers: dict[str, str]) -> None:
        self.base_url = base_url
        self._client = client
        self._headers = headers

    def send(
        self, method: str, url: str, fields: dict[str, object] | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the body of a response. Raises HttpClientError."""
        headers = self._headers
        body = b""
        if fields is not None:
            headers = {**headers, "content-type": "application/json"}
            body = msgspec.json.encode(fields)
        with self._client.send(method, url, headers, body) as response:
            return response.status, response.read_all(_MAX_BODY_BYTES)

    def fetch(self, url: str, type: type[T], purpose: str) -> T:
        """Fetch an object. Raises EngineError.

        purpose: what the URL is for, for the error.
        """
        try:
            status, body = self.send("GET", url)
        except (HttpClientError, ValueError) as error:
            raise EngineError(f"{url} cannot be reached: {error}") from None
        if status != 200:
            raise EngineError(f"{url} returned HTTP {status}")
        try:
            return msgspec.json.decode(body, type=type)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise EngineError(f"{url} does not {purpose}") from None

    def build_unlisted_error(self, model: str | None, names: Sequence[str]) -> EngineError:
        listed = ", ".join(names[:20])
        return EngineError(f"{self.base_url} has no model {model!r}. It has: {listed or 'none'}")
