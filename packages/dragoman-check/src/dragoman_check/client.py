"""The client of the server under test, which enforces the limits of a run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from dragoman_http import ClientTimeouts, HttpClient, HttpResponse, ProxyRules

from ._version import VERSION
from .check_exceptions import LimitReached
from .exchange import Exchange
from .json_objects import get_object
from .rules.json_values import JsonObject

DEFAULT_OUTPUT = 256
"""Output tokens that are counted for a request without a limit."""
_SAMPLING_OPTIONS = ("options", "parameters", "sampling_params")
"""Names of the objects of sampling options in a request."""
_TOKEN_LIMITS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "num_predict",
    "max_new_tokens",
)
"""Names of the token limit in a request, or in its sampling options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTarget:
    """The server to check, and the limits for it.

    url: base URL without `/v1`.
    model: name of the model; empty selects the first listed one.
    profile: a key of `claims.PROFILES`, or `auto`.
    timeout: seconds per request.
    max_requests: limit of all requests.
    max_tokens: limit of the output tokens that all requests together allow.
    """

    url: str
    api_key: str | None = None
    model: str = ""
    profile: str = "auto"
    timeout: float = 60.0
    max_requests: int = 2000
    max_tokens: int = 200_000


class Client:
    """An HTTP client of the server that counts requests and the output tokens that they
    allow.

    cache: results of `Session.share` with their exchanges.
    """

    def __init__(self, target: CheckTarget) -> None:
        self.target = target
        self.requests = 0
        self.tokens = 0
        self.cache: dict[str, tuple[object, list[Exchange]]] = {}
        self._http = HttpClient(
            ClientTimeouts(connect=target.timeout, read=target.timeout),
            # A proxy in front of the server could respond instead of it.
            proxies=ProxyRules({}),
        )

    async def close(self) -> None:
        await self._http.close()

    def spend(self, body: object) -> None:
        """Count a request before it is sent. Raises LimitReached."""
        if self.requests >= self.target.max_requests:
            raise LimitReached(f"the limit of {self.target.max_requests} requests is used up")
        tokens = _count_allowed_tokens(cast(JsonObject, body) if isinstance(body, dict) else {})
        if self.tokens + tokens > self.target.max_tokens:
            raise LimitReached(f"the limit of {self.target.max_tokens} output tokens is used up")
        self.requests += 1
        self.tokens += tokens

    def build_headers(self, path: str) -> dict[str, str]:
        """Build the headers with the key for this API, and Anthropic's version."""
        headers: dict[str, str] = {}
        if self.target.api_key is not None:
            headers["authorization"] = f"Bearer {self.target.api_key}"
        if path.startswith("/v1/messages"):
            headers["anthropic-version"] = "2023-06-01"
            if self.target.api_key is not None:
                headers["x-api-key"] = self.target.api_key
        if path.startswith("/v1beta/") and self.target.api_key is not None:
            headers["x-goog-api-key"] = self.target.api_key
        return headers

    @asynccontextmanager
    async def open(
        self, method: str, path: str, content: bytes, headers: Mapping[str, str]
    ) -> AsyncGenerator[HttpResponse]:
        """Send a request, and yield the response once its head has arrived. Leaving the
        block before the end of the body closes the connection.

        Raises:
            HttpClientError: there is no response.
            ValueError: the path or a header is malformed.
        """
        merged = {
            "user-agent": f"dragoman-check/{VERSION}",
            **self.build_headers(path),
            **headers,
        }
        response = await self._http.send(method, self.target.url + path, merged, content)
        try:
            yield response
        finally:
            response.close()


def _count_allowed_tokens(body: JsonObject) -> int:
    """Count the output tokens that a request allows, 0 if it does not generate text.

    The reported usage is not counted: the limit must hold even if usage is wrong.
    """
    # Only embeddings have `encoding_format`.
    if not body.keys() & {"messages", "prompt", "input", "text", "inputs"} or body.get(
        "encoding_format"
    ):
        return 0
    no_options: JsonObject = {}
    options = next(filter(None, (get_object(body, name) for name in _SAMPLING_OPTIONS)), no_options)
    limits = [source.get(name) for source in (body, options) for name in _TOKEN_LIMITS]
    limits = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    n = body.get("n")
    return max(limits, default=DEFAULT_OUTPUT) * (n if isinstance(n, int) and 0 < n < 10 else 1)
