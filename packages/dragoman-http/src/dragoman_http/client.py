"""The HTTP client: sends requests on a pool of connections."""

from __future__ import annotations

import asyncio
import re
import ssl

from msgspec import Struct

from .client_connection import ClientConnection
from .errors import ClientClosed, ConnectFailed, ConnectionLost
from .open_connection import open_connection
from .origin_route import OriginRoute, build_route
from .proxies import ProxyRules
from .response import HttpResponse
from .tls_context import build_tls_context
from .transport import HeaderFields
from .urls import parse_url

# A header line: a token, and a value without control characters (RFC 9110, 5.1 and
# 5.5).
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*")
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
# Methods whose body has a meaning, also if it is empty (RFC 9110, 8.6).
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class ClientTimeouts(Struct, frozen=True):
    """Timeouts in seconds.

    connect: limit for each step of a connection: name resolution and TCP, a proxy's
        tunnel, TLS.
    read: limit without any progress, before the first byte of a response and between
        its bytes; infinite for none.
    idle: how long an unused connection is kept open.
    """

    connect: float = 5.0
    read: float = 600.0
    idle: float = 5.0


class HttpClient:
    """Sends requests on pooled connections. It belongs to one event loop, and must be
    closed.

    proxies: None means those of the environment, or no proxy with `uds`.
    tls_context: None verifies servers against the system's certificates, or those of
        SSL_CERT_FILE or SSL_CERT_DIR.
    uds: path of a Unix socket, to which all requests are sent.
    decodes_bodies: whether compressed bodies are decoded. If not, their pieces are as
        sent, and `content-encoding` tells the coding.
    max_idle: unused connections that are kept for each origin. Connections in use are
        not limited.
    """

    def __init__(
        self,
        timeouts: ClientTimeouts | None = None,
        *,
        proxies: ProxyRules | None = None,
        tls_context: ssl.SSLContext | None = None,
        uds: str | None = None,
        decodes_bodies: bool = True,
        max_idle: int = 64,
    ) -> None:
        self._timeouts = timeouts or ClientTimeouts()
        self._uds = uds
        self._decodes_bodies = decodes_bodies
        self._max_idle = max_idle
        # With a socket a proxy of the environment that is not supported, such as one of
        # socks5, does not matter.
        self._proxies = proxies or ProxyRules(None if uds is None else {})
        self._tls_context = tls_context
        self._idle: dict[OriginRoute, list[ClientConnection]] = {}
        self._routes: dict[ClientConnection, OriginRoute] = {}
        self._connecting: set[asyncio.Timeout] = set()
        self._is_closed = False

    @property
    def num_connections(self) -> int:
        return len(self._routes)

    @property
    def num_idle(self) -> int:
        return sum(map(len, self._idle.values()))

    async def send(
        self,
        method: str,
        url: str,
        headers: HeaderFields,
        body: bytes = b"",
        *,
        read_timeout: float | None = None,
        connect_to: str | None = None,
    ) -> HttpResponse:
        """Send a request, and return the response once its head has arrived. Redirects
        are not followed.

        headers: without Host, Content-Length and Accept-Encoding, which are added.
        read_timeout: seconds; None means the client's.
        connect_to: IP address to connect to, directly, instead of resolving the URL's
            host. Host and TLS remain those of the URL.

        If a reused connection is lost without a response, the request is sent once more
        on a new connection, provided that this cannot repeat its effect: the method is
        idempotent, or the request had not been written completely.

        Raises:
            HttpClientError: the request has no response.
            ValueError: the URL or a header is malformed.
        """
        target = parse_url(url)
        route = build_route(target, self._proxies.find(target), self._uds, connect_to)
        pairs = headers if isinstance(headers, list) else headers.items()
        lines = [f"{name}: {value}" for name, value in pairs]
        if route.is_forwarded and route.proxy is not None and route.proxy.authorization is not None:
            lines.append(f"proxy-authorization: {route.proxy.authorization}")
        # A line break in a value could smuggle in another header, or another request.
        for line in lines:
            if _HEADER.fullmatch(line) is None:
                raise ValueError(f"the header {line.partition(':')[0]!r} is malformed")
        if body or method in _WITH_BODY:
            lines.append(f"content-length: {len(body)}")
        request_target = (
            f"http://{target.authority}{target.target}" if route.is_forwarded else target.target
        )
        first = (
            f"{method} {request_target} HTTP/1.1",
            f"host: {target.authority}",
            "accept-encoding: identity",
        )
        head = "\r\n".join((*first, *lines, "", "")).encode("latin-1")
        timeout = self._timeouts.read if read_timeout is None else read_timeout
        has_body = method != "HEAD"
        idle = self._idle.get(route, [])
        while idle:
            # The most recently used connection, so that the others can expire.
            connection = idle.pop()
            if connection.idle_timer is not None:
                connection.idle_timer.cancel()
                connection.idle_timer = None
            if not connection.is_usable:
                connection.abort()
                continue
            try:
                return await connection.request(head, body, timeout, has_body=has_body)
            except ConnectionLost as error:
                # RFC 9110, 9.2.2: a client must not automatically retry a request that
                # is not idempotent.
                if method not in _IDEMPOTENT and not error.is_untouched:
                    raise
                break
        connection = await self._connect(route)
        return await connection.request(head, body, timeout, has_body=has_body)

    async def close(self) -> None:
        """Close all connections. Running requests and responses fail with
        ClientClosed.
        """
        self._is_closed = True
        now = asyncio.get_running_loop().time()
        for timeout in self._connecting:
            # Connections are opened in the callers' tasks; an expired timeout stops
            # that without cancelling the tasks.
            timeout.reschedule(now)
        connections = list(self._routes)
        for connection in connections:
            connection.fail(ClientClosed("the client was closed"))
        if connections:
            # Transports close in the next iteration.
            await asyncio.sleep(0)

    async def _connect(self, route: OriginRoute) -> ClientConnection:
        loop = asyncio.get_running_loop()

        def build() -> ClientConnection:
            return ClientConnection(
                loop, self._keep, self._forget, decodes_bodies=self._decodes_bodies
            )

        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._connecting.add(timeout)
                if self._is_closed:
                    raise ClientClosed("the client was closed")
                connection = await open_connection(
                    route, build, self._find_tls_context, self._timeouts.connect
                )
        except TimeoutError:
            raise ClientClosed("the client was closed") from None
        finally:
            self._connecting.discard(timeout)
        self._routes[connection] = route
        if connection.transport.is_closing():
            connection.abort()
            raise ConnectFailed("the server closed the connection immediately")
        return connection

    def _find_tls_context(self) -> ssl.SSLContext:
        if self._tls_context is None:
            self._tls_context = build_tls_context()
        return self._tls_context

    def _keep(self, connection: ClientConnection) -> None:
        idle = self._idle.setdefault(self._routes[connection], [])
        if self._is_closed or len(idle) >= self._max_idle:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_timer = loop.call_later(self._timeouts.idle, connection.abort)
        idle.append(connection)

    def _forget(self, connection: ClientConnection) -> None:
        route = self._routes.pop(connection, None)
        idle = self._idle.get(route, []) if route is not None else []
        if connection in idle:
            idle.remove(connection)
        if route is not None and not idle:
            self._idle.pop(route, None)
