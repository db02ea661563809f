"""Asks upstreams over HTTP and gives events. All I/O of this engine is here; what is said is read elsewhere.

Retried is only what has not been answered: from the first byte on a failure is the answer's failure.
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
from ...core.events import Event
from ...core.request import GenerateRequest
from .discovery import authorization
from .encode import Ask, Defaults, encode
from .errors import refusal
from .kinds import Kind
from .pool import Pool, Upstream, prefix_of
from .reading import Reading
from .sse import EventStream
from .wire import Chunk

log = logging.getLogger(__name__)

MAX_WHOLE = 64 * 1024 * 1024
"""Bytes of an answer that an upstream does not stream."""
MAX_ERROR = 64 * 1024
_DONE = b"[DONE]"

T = TypeVar("T")


class _Lost(Overloaded):
    """The connection was lost before an answer came, as happens to one that was idle for long."""


class UpstreamConfig(Struct, frozen=True):
    """model: its name there. silence: seconds without a byte after which an upstream has failed. retries: how often
    a request is asked again, of another one. probe: seconds between looks at each. native_tools, native_reasoning:
    see Capabilities.
    """

    upstreams: tuple[Upstream, ...]
    model: str
    kind: Kind
    defaults: Defaults = Defaults()
    connect: float = 5.0
    silence: float = 600.0
    retries: int = 2
    probe: float = 1.0
    native_tools: bool = True
    native_reasoning: bool = True


class UpstreamEngine:
    """A `core.engine.Engine` over other servers. transport: how they are reached; None is the network."""

    def __init__(
        self,
        config: UpstreamConfig,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_id: Callable[[], str] = lambda: "call_" + secrets.token_hex(12),
    ) -> None:
        self._config, self._transport, self._sleep, self._new_id = config, transport, sleep, new_id
        self._pool = Pool(config.upstreams)
        self._client: httpx2.AsyncClient | None = None
        self._probing: asyncio.Task[None] | None = None
        self._reads: set[asyncio.Timeout] = set()
        kind = config.kind
        self._capabilities = Capabilities(
            kind.features, kind.parameters, kind.max_logprobs, config.native_tools, config.native_reasoning
        )
        self._decode = msgspec.json.Decoder(Chunk).decode

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def start(self) -> None:
        config = self._config
        self._client = httpx2.AsyncClient(
            transport=self._transport,
            timeout=httpx2.Timeout(config.silence, connect=config.connect, pool=None),
            # How many may run is decided before an engine is asked.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
        )
        self._probing = asyncio.create_task(self._probe(self._client))

    async def stop(self) -> None:
        client, self._client = self._client, None
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        for read in self._reads:
            read.reschedule(asyncio.get_running_loop().time())
        if client is not None:
            await client.aclose()

    def health(self) -> Health:
        if self._client is None:
            return Health(ready=False, reason="the engine is not running")
        running = sum(self._pool.running)
        if not self._pool.ready:
            return Health(ready=False, reason="no upstream is available", running=running)
        return Health(running=running)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        config = self._config
        ask = encode(request, config.kind, config.model, config.defaults)
        reading = Reading(request, self._new_id)
        async with self._answer(ask, prefix_of(request.prompt)) as answer, aclosing(self._chunks(answer)) as chunks:
            async for chunk in chunks:
                for event in reading.feed(chunk):
                    yield event
        for event in reading.close():
            yield event

    @asynccontextmanager
    async def _answer(self, ask: Ask, prefix: bytes) -> AsyncGenerator[httpx2.Response]:
        """An answer of status 200, of which nothing has been read. Raises what the last upstream said otherwise."""
        index, response = await self._ask(ask, prefix)
        try:
            yield response
        except httpx2.HTTPError as error:
            self._blame(index, error)
            raise _failure(error) from None
        finally:
            self._pool.running[index] -= 1
            await response.aclose()

    async def _ask(self, ask: Ask, prefix: bytes) -> tuple[int, httpx2.Response]:
        """The upstream that took the request; it counts as running it. One that has no room is not asked again."""
        tried: set[int] = set()
        last: Overloaded | RateLimited = Overloaded("No upstream is available; retry later.")
        for _ in range(self._config.retries + 1):
            index = self._pool.choose(prefix, tried)
            if index is None and isinstance(last, _Lost):
                index = self._pool.choose(prefix)
            if index is None:
                break
            tried.add(index)
            try:
                return index, await self._post(index, ask)
            except (Overloaded, RateLimited) as error:
                last = error
        raise last

    async def _post(self, index: int, ask: Ask) -> httpx2.Response:
        client, upstream = self._client, self._pool.upstreams[index]
        if client is None:
            raise EngineError("The engine is not running.")
        headers = {"content-type": "application/json", "accept": "text/event-stream", **authorization(upstream)}
        request = client.build_request("POST", upstream.url + ask.path, content=ask.body, headers=headers)
        self._pool.running[index] += 1
        try:
            response = await self._patiently(client.send(request, stream=True))
            if response.status_code == 200:
                return response
            try:
                body = await self._patiently(_at_most(response, MAX_ERROR))
            finally:
                await response.aclose()
        except BaseException as error:
            self._pool.running[index] -= 1
            if isinstance(error, httpx2.HTTPError):
                self._blame(index, error)
                raise _unanswered(error) from None
            raise
        self._pool.running[index] -= 1
        # What a client did wrong is told to the client.
        status = response.status_code
        level = logging.WARNING if status >= 500 or status in (401, 403) else logging.DEBUG
        log.log(level, "%s returned HTTP %d", upstream.url, status)
        raise refusal(status, body, response.headers.get("retry-after"))

    async def _chunks(self, response: httpx2.Response) -> AsyncGenerator[Chunk]:
        """All chunks of a stream up to its end; the one object of an answer that is not streamed."""
        if response.headers.get("content-type", "").startswith("application/json"):
            yield self._chunk(await self._patiently(_at_most(response, MAX_WHOLE)))
            return
        events = EventStream()
        async with aclosing(response.aiter_bytes()) as pieces:  # pyright: ignore[reportArgumentType] - it is one
            while (piece := await self._patiently(anext(pieces, None))) is not None:
                for data in events.feed(piece):
                    if data == _DONE:
                        return
                    yield self._chunk(data)

    def _chunk(self, data: bytes) -> Chunk:
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.warning("an upstream's chunk cannot be parsed: %s", error)
            raise EngineError("The upstream sent an invalid chunk.") from None

    async def _patiently(self, wait: Awaitable[T]) -> T:
        """Waits for an upstream, unless this engine is stopped meanwhile: then EngineError."""
        try:
            async with asyncio.timeout(None) as patience:
                self._reads.add(patience)
                try:
                    return await wait
                finally:
                    self._reads.discard(patience)
        except TimeoutError:
            raise EngineError("The engine was stopped.") from None

    def _blame(self, index: int, error: httpx2.HTTPError) -> None:
        """One that is silent, or hangs up, may be busy or may have lost one connection: the next look will tell."""
        log.warning("%s: %s", self._pool.upstreams[index].url, error or type(error).__name__)
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            self._pool.tell(index, up=False)

    async def _probe(self, client: httpx2.AsyncClient) -> None:
        """Looks after every upstream, all at once, again and again."""
        while True:
            await asyncio.gather(*(self._look(client, index) for index in range(len(self._pool.upstreams))))
            await self._sleep(self._config.probe)

    async def _look(self, client: httpx2.AsyncClient, index: int) -> None:
        upstream = self._pool.upstreams[index]
        try:
            answer = await client.get(
                f"{upstream.url}/models", headers=authorization(upstream), timeout=self._config.connect
            )
            up = answer.status_code < 500
        except httpx2.HTTPError:
            up = False
        if up != self._pool.is_up(index):
            log.warning("%s is %s", upstream.url, "up" if up else "down")
        self._pool.tell(index, up=up)


async def _at_most(response: httpx2.Response, most: int) -> bytes:
    """The body. Of an error that is longer the beginning will do; an answer that is longer is no answer."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_bytes():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            if response.status_code == 200:
                raise EngineError(f"The upstream's answer has more than {most} bytes.")
            break
    return b"".join(pieces)


def _failure(error: httpx2.HTTPError) -> EngineError:
    if isinstance(error, httpx2.ReadTimeout | httpx2.WriteTimeout):
        return EngineTimeout("The upstream timed out.")
    return EngineError("The connection to the upstream was lost.")


def _unanswered(error: httpx2.HTTPError) -> EngineError:
    """Nothing has been answered yet, so that another one, or another connection, may be tried."""
    if isinstance(error, httpx2.ReadTimeout | httpx2.WriteTimeout):
        return _failure(error)
    reached = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
    return _Lost("The upstream closed the connection.") if reached else Overloaded("The upstream cannot be reached.")
