"""The session in which a check runs: its requests, and their record."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake

from dragoman_http import (
    ConnectFailed,
    ConnectionLost,
    HttpClientError,
    HttpResponse,
    ResponseTimeout,
)

from .check_exceptions import Skipped
from .client import Client
from .exchange import Exchange
from .raw_request import send_bytes
from .rules.json_values import JsonObject, Violation, require
from .websocket import JsonWebSocket

T = TypeVar("T")

REFUSALS = (400, 403, 404, 405, 422, 501)
"""Statuses of a server that lacks the requested feature."""


class Session:
    """The requests of one check.

    claims: the features that the server claims.
    exchanges: the evidence, in order.
    """

    def __init__(self, client: Client, claims: frozenset[str]) -> None:
        self.client = client
        self.target = client.target
        self.claims = claims
        self.exchanges: list[Exchange] = []

    @property
    def model(self) -> str:
        return self.target.model

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Exchange:
        """Send a request, and read the whole response.

        body: encoded as JSON.
        raw: bytes to send as the body instead.

        Raises Violation if there is no complete response, and LimitReached.
        """
        self.client.spend(body)
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent_headers = {
            **({} if content is None else {"content-type": "application/json"}),
            **(headers or {}),
        }
        exchange = Exchange(method, path, content or b"")
        self.exchanges.append(exchange)
        start = time.perf_counter()
        try:
            try:
                await self._receive(exchange, sent_headers)
            except ConnectionLost:
                # The server may have closed an idle connection while it was reused (RFC
                # 9112, 9.3.1): retry once.
                if exchange.status:
                    raise
                await self._receive(exchange, sent_headers)
        except (HttpClientError, ValueError) as error:
            raise self._build_violation(method, path, error) from None
        finally:
            exchange.seconds = time.perf_counter() - start
        return exchange

    async def _receive(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        async with self.client.open(
            exchange.method, exchange.path, exchange.request, headers
        ) as response:
            exchange.status = response.status
            exchange.headers = list(response.headers.items())
            while (piece := await response.read()) is not None:
                exchange.body += piece

    def _build_violation(self, method: str, path: str, error: Exception) -> Violation:
        match error:
            case ResponseTimeout():
                reason = f"no response within {self.target.timeout:g} s"
            case ConnectFailed():
                reason = f"cannot connect to {self.target.url}: {error}"
            case _:
                reason = str(error)
        return Violation(f"{method} {path}: {reason}")

    async def post(self, path: str, body: object, **options: Any) -> Exchange:
        return await self.send("POST", path, body, **options)

    async def get(self, path: str, **options: Any) -> Exchange:
        return await self.send("GET", path, **options)

    async def request(
        self, path: str, body: JsonObject, *, feature: str | None = None, **options: Any
    ) -> Exchange:
        """Send a request whose response has to have the status 200.

        feature: an option of the request that a server may reject, or ignore with a
            warning.

        Raises:
            Skipped: the server rejects a feature that it does not claim, as with
                `auto`, or ignores it with a warning.
            Violation: another status than 200.
        """
        exchange = await self.post(path, body, **options)
        # With `auto`, claims are only assumed from routes.
        is_claimed = feature in self.claims and self.target.profile != "auto"
        if feature is not None and not is_claimed and exchange.status in REFUSALS:
            raise Skipped(f"the server rejects {feature}: {exchange.message()}")
        warnings = exchange.header("x-dragoman-warnings") or ""
        if feature is not None and f"{feature} is ignored" in warnings:
            raise Skipped(f"the server ignores {feature}: {warnings}")
        require(
            exchange.status == 200, f"POST {path}: status {exchange.status}: {exchange.message()}"
        )
        return exchange

    async def share(self, key: str, build: Callable[[], Awaitable[T]]) -> T:
        """Return or raise the result of `build`, cached for all checks; its exchanges
        become evidence of each.
        """
        cached = self.client.cache.get(key)
        if cached is None:
            before = len(self.exchanges)
            try:
                value: object = await build()
            # Cache failures, too: a failed request is not repeated for every check that
            # needs it.
            except (Violation, Skipped) as error:
                value = error
            cached = self.client.cache[key] = (value, self.exchanges[before:])
        else:
            self.exchanges += cached[1]
        if isinstance(cached[0], Exception):
            raise cached[0]
        return cast(T, cached[0])

    async def send_bytes(self, data: bytes, *, patience: float = 5.0) -> Exchange:
        """Send bytes on a new connection; see `raw_request.send_bytes`.

        The exchange's body is everything that was received, with status line and
        headers.

        Raises Violation if the connection cannot be established, and LimitReached.
        """
        self.client.spend(None)
        exchange = Exchange("RAW", urlsplit(self.target.url).netloc, data)
        self.exchanges.append(exchange)
        try:
            exchange.body = await send_bytes(self.target.url, data, patience)
        except OSError as error:
            raise Violation(f"cannot connect to {self.target.url}: {error}") from None
        status_line = exchange.body.partition(b"\r\n")[0].split(b" ")
        if len(status_line) > 1 and status_line[1].isdigit():
            exchange.status = int(status_line[1])
        return exchange

    def build_head(
        self, method: str, path: str, *lines: str, version: str = "HTTP/1.1", host: bool = True
    ) -> bytes:
        """Build the request line and headers of a raw request, with the key, without
        the final empty line.
        """
        netloc = urlsplit(self.target.url).netloc
        head = [f"{method} {path} {version}", *([f"Host: {netloc}"] if host else [])]
        head += [f"{name}: {value}" for name, value in self.client.build_headers(path).items()]
        return "".join(f"{line}\r\n" for line in (*head, *lines)).encode("latin-1")

    @asynccontextmanager
    async def stream(
        self, path: str, body: JsonObject, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[HttpResponse]:
        """Open a stream. Leaving the block closes the connection, which cancels the
        generation.
        """
        # Counted as `DEFAULT_OUTPUT` tokens, whatever the request allows: the check
        # disconnects early.
        self.client.spend({"prompt": ""})
        exchange = Exchange("POST", path, json.dumps(body).encode())
        self.exchanges.append(exchange)
        sent_headers = {"content-type": "application/json", **(headers or {})}
        try:
            async with self.client.open("POST", path, exchange.request, sent_headers) as response:
                exchange.status = response.status
                yield response
        except HttpClientError as error:
            raise self._build_violation("POST", path, error) from None

    @asynccontextmanager
    async def open_websocket(self, path: str) -> AsyncGenerator[JsonWebSocket]:
        """Open a WebSocket. Raises Skipped if the server has none at this path."""
        self.client.spend(None)
        url = self.target.url.replace("http", "ws", 1) + path
        exchange = Exchange("WEBSOCKET", path, b"")
        self.exchanges.append(exchange)
        try:
            async with connect(
                url,
                additional_headers=self.client.build_headers(path),
                proxy=None,
                open_timeout=self.target.timeout,
                max_size=None,
            ) as connection:
                yield JsonWebSocket(connection, exchange, self.client)
        except InvalidHandshake as error:
            raise Skipped(f"no WebSocket at {path}: {error}") from None
