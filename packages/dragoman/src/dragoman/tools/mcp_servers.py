"""The MCP servers of this process: which may be used, and their open sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address, ip_address

from dragoman_http import ClientTimeouts, HttpClient, ProxyRules, parse_url

from .http_transport import RESERVED_HEADERS, StreamableHttpTransport
from .interface import (
    ServerTool,
    ToolCallResult,
    ToolServer,
    ToolServerError,
    ToolServerErrorKind,
    ToolServerRequest,
)
from .mcp_session import McpSession, SessionLimits
from .stdio_transport import StdioTransport
from .tool_file import ServerEntry, ToolFile

MAX_SESSIONS = 256
"""Maximum open sessions with servers that clients have named."""
IDLE_TIMEOUT = 60.0
"""Seconds after which an unused session with such a server is closed."""
_READ_TIMEOUT = 3600.0
"""Longer than any call: a session limits the time of each request itself."""

ResolveHost = Callable[[str, int], Awaitable[list[str]]]
"""Resolves a host to addresses for connections to a port. Raises OSError if there are
none.
"""
IsPublic = Callable[[IPv4Address | IPv6Address], bool]


class McpServers:
    """Implements `ToolServers`. Sessions are opened when they are needed first, and
    reused.

    resolve: resolves the host of a URL that a client has named.
    is_public: whether such a host may have this address.
    now: a monotonic clock, in seconds.
    """

    def __init__(
        self, file: ToolFile, *, resolve: ResolveHost, is_public: IsPublic, now: Callable[[], float]
    ) -> None:
        self._file = file
        self._resolve = resolve
        self._is_public = is_public
        self._now = now
        self._pool: dict[ToolServerRequest, _PooledSession] = {}
        self._is_closed = False

    @asynccontextmanager
    async def _open(self, request: ToolServerRequest) -> AsyncGenerator[ToolServer]:
        self._check(request)
        # The owner's key does not matter to the operator's servers, which all share.
        key = ToolServerRequest(label=request.label) if request.server_url is None else request
        if key not in self._pool:
            await self._make_room(key)
        # Others may have come while room was made: with this session, or to close all.
        self._check(request)
        pooled = self._pool.get(key)
        if pooled is None:
            pooled = self._pool[key] = _PooledSession(lambda: self._build_session(key), self._now)
        pooled.n_users += 1
        try:
            await pooled.connect()
            yield pooled
        finally:
            pooled.n_users -= 1
            pooled.last_used = self._now()
            if key.server_url is not None and not self._is_closed:
                # Its headers are secrets of a client, so it does not stay open for long.
                asyncio.get_running_loop().call_later(IDLE_TIMEOUT, self._expire, key)

    def open(self, request: ToolServerRequest) -> AbstractAsyncContextManager[ToolServer]:
        return self._open(request)

    async def close(self) -> None:
        self._is_closed = True
        pooled = list(self._pool.values())
        self._pool.clear()
        await asyncio.gather(*(each.close() for each in pooled), return_exceptions=True)
        for name in ("_direct_client", "_operator_client"):
            if name in self.__dict__:
                await self.__dict__[name].close()

    @cached_property
    def _direct_client(self) -> HttpClient:
        # A proxy of the environment would connect to an unchecked address.
        return HttpClient(
            ClientTimeouts(read=_READ_TIMEOUT), proxies=ProxyRules({}), decodes_bodies=False
        )

    @cached_property
    def _operator_client(self) -> HttpClient:
        return HttpClient(ClientTimeouts(read=_READ_TIMEOUT), decodes_bodies=False)

    def _check(self, request: ToolServerRequest) -> None:
        """Raises ToolServerError if the operator does not allow the request."""
        if self._is_closed:
            raise _build_shutdown_error()
        if request.server_url is None:
            if request.label not in self._file.servers:
                raise _refuse(
                    "this server's operator has configured no tool server of this label, and the "
                    "request names no 'server_url'"
                )
            if request.headers or request.authorization is not None:
                raise _refuse("'headers' and 'authorization' need a 'server_url'")
        elif not self._file.allows_url(request.server_url):
            raise _refuse("this server's operator does not allow its 'server_url'")
        for name, _ in request.headers:
            if name.lower() in RESERVED_HEADERS:
                raise _refuse(f"the header {name.lower()!r} cannot be set")

    def _build_session(self, request: ToolServerRequest) -> McpSession:
        if request.server_url is None:
            entry = self._file.servers[request.label]
            limits = SessionLimits(
                entry.connect_timeout, entry.call_timeout, entry.max_output_bytes
            )
            transport = self._build_operator_transport(entry)
        else:
            limits = SessionLimits()
            transport = self._build_client_transport(request, request.server_url, limits)
        session = McpSession(transport, limits, self._now)
        transport.on_tools_changed = session.expire_tools
        return session

    def _build_operator_transport(
        self, entry: ServerEntry
    ) -> StdioTransport | StreamableHttpTransport:
        max_bytes = _limit_message(entry.max_output_bytes)
        if entry.url is not None:
            headers = list(entry.headers.items())
            return StreamableHttpTransport(
                self._operator_client, entry.url, headers, max_body=max_bytes
            )
        assert entry.command is not None
        return StdioTransport(
            (entry.command, *entry.args),
            entry.env,
            max_line=max_bytes,
            max_memory=entry.max_memory_bytes,
        )

    def _build_client_transport(
        self, request: ToolServerRequest, url: str, limits: SessionLimits
    ) -> StreamableHttpTransport:
        headers = list(request.headers)
        if request.authorization is not None:
            headers = [each for each in headers if each[0].lower() != "authorization"]
            headers.append(("authorization", f"Bearer {request.authorization}"))

        async def find_address() -> str:
            return await self._find_address(url)

        return StreamableHttpTransport(
            self._direct_client,
            url,
            headers,
            max_body=_limit_message(limits.max_output_bytes),
            find_address=find_address,
        )

    async def _find_address(self, url: str) -> str:
        """Resolve the host once: the connection uses the checked address, so that no
        second resolution can differ (DNS rebinding).
        """
        parsed = parse_url(url)
        try:
            addresses = await self._resolve(parsed.host, parsed.port)
        except (OSError, UnicodeError):
            addresses = []
        if not addresses:
            raise ToolServerError(
                ToolServerErrorKind.CONNECTION, "The host of the server cannot be resolved."
            )
        # All must be public: a host with one internal address is suspicious.
        if not self._file.allow_private_addresses and not all(
            self._is_public(ip_address(address)) for address in addresses
        ):
            raise _refuse("the host of its 'server_url' has an address that is not public")
        return addresses[0]

    async def _make_room(self, key: ToolServerRequest) -> None:
        """Close the least recently used session if there are too many."""
        if key.server_url is None:
            return
        named = [each for each in self._pool if each.server_url is not None]
        if len(named) < MAX_SESSIONS:
            return
        idle = [each for each in named if not self._pool[each].n_users]
        if not idle:
            raise ToolServerError(
                ToolServerErrorKind.CONNECTION, "Too many tool servers are in use; retry later."
            )
        await self._pool.pop(min(idle, key=lambda each: self._pool[each].last_used)).close()

    def _expire(self, key: ToolServerRequest) -> None:
        pooled = self._pool.get(key)
        if pooled is None or pooled.n_users or self._now() - pooled.last_used < IDLE_TIMEOUT:
            return
        del self._pool[key]
        pooled.close_soon()


class _PooledSession:
    """A session that is opened again when it has ended; implements `ToolServer`.

    n_users: requests that use it now.
    last_used: when the last one ended.
    """

    def __init__(self, build: Callable[[], McpSession], now: Callable[[], float]) -> None:
        self.n_users = 0
        self.last_used = now()
        self._build = build
        self._session: McpSession | None = None
        self._lock = asyncio.Lock()
        self._n_failures = 0
        self._failure: ToolServerError | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_closed = False
        self._opening: asyncio.Timeout | None = None

    async def connect(self) -> McpSession:
        """Return the open session. Raises ToolServerError."""
        n_failures = self._n_failures
        async with self._lock:
            if self._is_closed:
                raise _build_shutdown_error()
            if self._session is not None and not self._session.is_closed:
                return self._session
            if self._n_failures != n_failures and self._failure is not None:
                # An attempt failed while this one waited; another would wait as long.
                failure = self._failure
                raise ToolServerError(failure.kind, failure.message, failure.code)
            if self._session is not None:
                await self._session.close()
                self._session = None
            try:
                self._session = await self._open()
            except ToolServerError as error:
                self._n_failures += 1
                self._failure = error
                raise
            return self._session

    async def _open(self) -> McpSession:
        session = self._build()
        try:
            # `close` lets it expire, which ends the attempt without cancelling the task.
            async with asyncio.timeout(None) as self._opening:
                await session.open()
        except TimeoutError:
            raise _build_shutdown_error() from None
        finally:
            self._opening = None
        return session

    async def list_tools(self) -> tuple[ServerTool, ...]:
        session = await self.connect()
        try:
            return await session.list_tools()
        except ToolServerError:
            if not session.is_closed:
                raise
        return await (await self.connect()).list_tools()

    async def call(
        self,
        name: str,
        arguments: str,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> ToolCallResult:
        session = await self.connect()
        try:
            return await session.call(name, arguments, timeout=timeout)
        except ToolServerError as error:
            # Only an unknown session proves that nothing was called. Another call may have
            # closed the session since, so the status must be this call's own.
            is_unknown = (
                error.kind is ToolServerErrorKind.HTTP and error.code == 404 and session.is_closed
            )
            if not is_unknown:
                raise
        return await (await self.connect()).call(name, arguments, timeout=timeout)

    async def close(self) -> None:
        """Close the session for good, also one that is being opened."""
        self._is_closed = True
        if self._opening is not None and not self._opening.expired():
            self._opening.reschedule(asyncio.get_running_loop().time())
        async with self._lock:
            session = self._session
            self._session = None
            if session is not None:
                await session.close()

    def close_soon(self) -> None:
        self._closing = asyncio.create_task(self.close())


def _limit_message(max_output_bytes: int) -> int:
    """Return the maximum bytes of a message with a result: escapes make it longer. It must
    hold a page of a list too.
    """
    return 2 * max_output_bytes + 1024 * 1024


def _build_shutdown_error() -> ToolServerError:
    return ToolServerError(ToolServerErrorKind.CONNECTION, "This server is shutting down.")


def _refuse(reason: str) -> ToolServerError:
    return ToolServerError(ToolServerErrorKind.REFUSED, reason)
