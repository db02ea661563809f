"""The upstream engine: sends requests over HTTP and yields events. All I/O of this package is here.

Only requests without any response byte are retried: after the first byte a failure ends the response.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import httpx2
import msgspec
from msgspec import Struct

from ...core.engine import Capabilities, Health
from ...core.errors import EngineError, EngineTimeout, Overloaded, RateLimited
from ...core.events import ChoiceFinished, Event, Finished, FinishReason, PromptTokens, Started
from ...core.request import Conversation, GenerateRequest
from ...core.trace_context import CURRENT_SPAN
from .chunk_reader import ChunkReader
from .discovery import build_auth_headers
from .encode import UpstreamDefaults, UpstreamRequest, encode_detokenize_request, encode_request
from .errors import parse_error
from .pool import Upstream, UpstreamPool, build_prefix
from .server_kinds import ServerKind
from .sse import SseDecoder
from .wire import DetokenizeResponse, UpstreamChunk

log = logging.getLogger(__name__)

MAX_JSON_BODY = 64 * 1024 * 1024
"""Limit of a non-streamed response, bytes."""
MAX_ERROR_BODY = 64 * 1024
_DONE = b"[DONE]"

T = TypeVar("T")


class _ConnectionLost(Overloaded):
    """The connection was lost before a response, as happens to keepalive connections that the server closed."""


class UpstreamConfig(Struct, frozen=True):
    """Settings of an upstream engine.

    model: its name at the upstream.
    connect_timeout: seconds.
    read_timeout: seconds without a byte after which an upstream has failed.
    retries: how many times a request is retried, on other upstreams.
    probe_interval: seconds between health checks.
    native_tools, native_reasoning: see Capabilities.
    """

    upstreams: tuple[Upstream, ...]
    model: str
    kind: ServerKind
    defaults: UpstreamDefaults = UpstreamDefaults()
    connect_timeout: float = 5.0
    read_timeout: float = 600.0
    retries: int = 2
    probe_interval: float = 1.0
    native_tools: bool = True
    native_reasoning: bool = True


class UpstreamEngine:
    """A `core.engine.Engine` over other servers. transport: the HTTP transport; None is the network."""

    def __init__(
        self,
        config: UpstreamConfig,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_id: Callable[[], str] = lambda: "call_" + secrets.token_hex(12),
    ) -> None:
        self._config, self._transport, self._sleep, self._new_id = config, transport, sleep, new_id
        self._pool = UpstreamPool(config.upstreams)
        self._client: httpx2.AsyncClient | None = None
        self._probe_task: asyncio.Task[None] | None = None
        self._timeouts: set[asyncio.Timeout] = set()
        kind = config.kind
        self._capabilities = Capabilities(
            kind.features, kind.parameters, kind.max_logprobs, config.native_tools, config.native_reasoning
        )
        self._decode = msgspec.json.Decoder(UpstreamChunk).decode

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        return self._config.upstreams

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def start(self) -> None:
        config = self._config
        self._client = httpx2.AsyncClient(
            transport=self._transport,
            timeout=httpx2.Timeout(config.read_timeout, connect=config.connect_timeout, pool=None),
            # Unlimited: the queue in front of the engine limits concurrency.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
        )
        self._probe_task = asyncio.create_task(self._probe_all(self._client))

    async def stop(self) -> None:
        client, self._client = self._client, None
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.gather(self._probe_task, return_exceptions=True)
        for timeout in self._timeouts:
            timeout.reschedule(asyncio.get_running_loop().time())
        if client is not None:
            await client.aclose()

    def health(self) -> Health:
        if self._client is None:
            return Health(ready=False, reason="the engine is not running")
        running = sum(self._pool.running)
        if not self._pool.is_ready:
            return Health(ready=False, reason="no upstream is available", running=running)
        return Health(running=running)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        if request.limits.max_tokens == 0 and isinstance(request.prompt, Conversation):
            # Chat upstreams reject a limit of 0. One token fills their prefix cache as well, and is dropped.
            limits = msgspec.structs.replace(request.limits, max_tokens=1)
            async with aclosing(self.generate(msgspec.structs.replace(request, limits=limits))) as events:
                async for event in events:
                    match event:
                        case Started() | PromptTokens():
                            yield event
                        case ChoiceFinished(choice):
                            yield ChoiceFinished(choice, FinishReason.LENGTH)
                        case Finished(usage):
                            yield Finished(msgspec.structs.replace(usage, completion=0, reasoning=None))
                        case _:
                            pass
            return
        config = self._config
        upstream_request = encode_request(request, config.kind, config.model, config.defaults)
        prefix, prompt_text = build_prefix(request.prompt), None
        if request.return_prompt and isinstance(request.prompt, tuple):
            detokenize_request = encode_detokenize_request(config.model, request.prompt)
            async with self._open_response(detokenize_request, prefix) as response:
                prompt_text = _decode_prompt(await self._wait_for(_read_limited(response, MAX_JSON_BODY)))
        reader = ChunkReader(request, self._new_id, prompt_text)
        async with (
            self._open_response(upstream_request, prefix) as response,
            aclosing(self._read_chunks(response)) as chunks,
        ):
            async for chunk in chunks:
                for event in reader.feed(chunk):
                    yield event
        for event in reader.close():
            yield event

    @asynccontextmanager
    async def _open_response(self, request: UpstreamRequest, prefix: bytes) -> AsyncGenerator[httpx2.Response]:
        """Open a response of status 200, its body unread. Otherwise raises the error of the last upstream."""
        index, response = await self._send_with_retries(request, prefix)
        try:
            yield response
        except httpx2.HTTPError as error:
            self._record_failure(index, error)
            raise _build_error(error) from None
        finally:
            self._pool.running[index] -= 1
            await response.aclose()

    async def _send_with_retries(self, request: UpstreamRequest, prefix: bytes) -> tuple[int, httpx2.Response]:
        """Send to upstreams until one accepts; it counts the request as running. An overloaded upstream is not
        retried."""
        tried: set[int] = set()
        last_error: Overloaded | RateLimited = Overloaded("No upstream is available; retry later.")
        for _ in range(self._config.retries + 1):
            index = self._pool.choose(prefix, tried)
            if index is None and isinstance(last_error, _ConnectionLost):
                index = self._pool.choose(prefix)
            if index is None:
                break
            tried.add(index)
            try:
                return index, await self._post(index, request)
            except (Overloaded, RateLimited) as error:
                last_error = error
        raise last_error

    async def _post(self, index: int, upstream_request: UpstreamRequest) -> httpx2.Response:
        client, upstream = self._client, self._pool.upstreams[index]
        if client is None:
            raise EngineError("The engine is not running.")
        headers = {"content-type": "application/json", "accept": "text/event-stream", **build_auth_headers(upstream)}
        if (span := CURRENT_SPAN.get()) is not None:
            headers |= span.build_headers()
        base_url = upstream.url if upstream_request.is_versioned else upstream.url.removesuffix("/v1")
        request = client.build_request(
            "POST", base_url + upstream_request.path, content=upstream_request.body, headers=headers
        )
        self._pool.running[index] += 1
        try:
            response = await self._wait_for(client.send(request, stream=True))
            if response.status_code == 200:
                return response
            try:
                body = await self._wait_for(_read_limited(response, MAX_ERROR_BODY))
            finally:
                await response.aclose()
        except BaseException as error:
            self._pool.running[index] -= 1
            if isinstance(error, httpx2.HTTPError):
                self._record_failure(index, error)
                raise _build_connection_error(error) from None
            raise
        self._pool.running[index] -= 1
        # Client errors are passed to the client.
        status = response.status_code
        level = logging.WARNING if status >= 500 or status in (401, 403) else logging.DEBUG
        log.log(level, "%s returned HTTP %d", upstream.url, status)
        raise parse_error(status, body, response.headers.get("retry-after"))

    async def _read_chunks(self, response: httpx2.Response) -> AsyncGenerator[UpstreamChunk]:
        """Yield the chunks of a stream up to its end, or the single object of a non-streamed response."""
        if response.headers.get("content-type", "").startswith("application/json"):
            yield self._decode_chunk(await self._wait_for(_read_limited(response, MAX_JSON_BODY)))
            return
        events = SseDecoder()
        async with aclosing(response.aiter_bytes()) as pieces:  # pyright: ignore[reportArgumentType] - it is one
            while (piece := await self._wait_for(anext(pieces, None))) is not None:
                for data in events.feed(piece):
                    if data == _DONE:
                        return
                    yield self._decode_chunk(data)

    def _decode_chunk(self, data: bytes) -> UpstreamChunk:
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.warning("an upstream's chunk cannot be parsed: %s", error)
            raise EngineError("The upstream sent an invalid chunk.") from None

    async def _wait_for(self, awaitable: Awaitable[T]) -> T:
        """Await an upstream's response. Raises EngineError if this engine is stopped meanwhile."""
        try:
            async with asyncio.timeout(None) as timeout:
                self._timeouts.add(timeout)
                try:
                    return await awaitable
                finally:
                    self._timeouts.discard(timeout)
        except TimeoutError:
            raise EngineError("The engine was stopped.") from None

    def _record_failure(self, index: int, error: httpx2.HTTPError) -> None:
        """Record a transport failure. A timeout or disconnect may concern one connection only: the next health check
        decides."""
        log.warning("%s: %s", self._pool.upstreams[index].url, error or type(error).__name__)
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            self._pool.set_up(index, up=False)

    async def _probe_all(self, client: httpx2.AsyncClient) -> None:
        """Health-check all upstreams concurrently, until cancelled."""
        while True:
            await asyncio.gather(*(self._probe_one(client, index) for index in range(len(self._pool.upstreams))))
            await self._sleep(self._config.probe_interval)

    async def _probe_one(self, client: httpx2.AsyncClient, index: int) -> None:
        upstream = self._pool.upstreams[index]
        try:
            response = await client.get(
                f"{upstream.url}/models", headers=build_auth_headers(upstream), timeout=self._config.connect_timeout
            )
            is_up = response.status_code < 500
        except httpx2.HTTPError:
            is_up = False
        if is_up != self._pool.is_up(index):
            log.warning("%s is %s", upstream.url, "up" if is_up else "down")
        self._pool.set_up(index, up=is_up)


def _decode_prompt(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=DetokenizeResponse).prompt
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.warning("an upstream's text of a prompt cannot be parsed: %s", error)
        raise EngineError("The upstream sent an invalid response.") from None


async def _read_limited(response: httpx2.Response, max_bytes: int) -> bytes:
    """Read a body. A longer error is truncated; a longer successful response is an EngineError."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_bytes():
        pieces.append(piece)
        size += len(piece)
        if size > max_bytes:
            if response.status_code == 200:
                raise EngineError(f"The upstream's answer has more than {max_bytes} bytes.")
            break
    return b"".join(pieces)


def _build_error(error: httpx2.HTTPError) -> EngineError:
    if isinstance(error, httpx2.ReadTimeout | httpx2.WriteTimeout):
        return EngineTimeout("The upstream timed out.")
    return EngineError("The connection to the upstream was lost.")


def _build_connection_error(error: httpx2.HTTPError) -> EngineError:
    """Build the error of a failed connection: no response has begun, so the request can be retried."""
    if isinstance(error, httpx2.ReadTimeout | httpx2.WriteTimeout):
        return _build_error(error)
    was_connected = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
    return (
        _ConnectionLost("The upstream closed the connection.")
        if was_connected
        else Overloaded("The upstream cannot be reached.")
    )
