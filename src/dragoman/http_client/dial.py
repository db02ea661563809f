"""Opens connections: TCP over several addresses, Unix sockets, TLS, and tunnels through a proxy."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from .connection import MAX_HEAD_BYTES, ClientConnection
from .errors import ConnectFailed, HttpClientError
from .response import HEAD_END, parse_response_head
from .urls import Proxy, Url

STAGGER = 0.25
"""Seconds until the next address of a host is tried beside the one before (Happy Eyeballs, RFC 8305)."""

AddressInfo = tuple[Any, Any, int, str, Any]


class OriginRoute(Struct, frozen=True):
    """Where connections to an origin go; the key of the pool.

    uds: path of a Unix socket to connect to instead of the host.
    """

    is_tls: bool
    host: str
    port: int
    proxy: Proxy | None = None
    uds: str | None = None

    @property
    def is_forwarded(self) -> bool:
        """Whether a proxy reads the requests: their target is the whole URL."""
        return self.proxy is not None and not self.is_tls


def build_route(url: Url, proxy: Proxy | None, uds: str | None) -> OriginRoute:
    return OriginRoute(url.is_tls, url.host, url.port, None if uds is not None else proxy, uds)


async def open_connection(
    route: OriginRoute,
    build_connection: Callable[[], ClientConnection],
    find_tls_context: Callable[[], ssl.SSLContext],
    step_timeout: float,
) -> ClientConnection:
    """Open a connection. step_timeout: seconds for each of its steps: the connection itself, a proxy's tunnel, TLS.

    Raises:
        ConnectFailed: it could not be established.
    """
    loop = asyncio.get_running_loop()
    proxy = route.proxy
    try:
        if route.uds is not None:
            async with asyncio.timeout(step_timeout):
                return (await loop.create_unix_connection(build_connection, route.uds))[1]
        host, port = (route.host, route.port) if proxy is None else (proxy.host, proxy.port)
        context = find_tls_context() if route.is_tls or (proxy is not None and proxy.is_tls) else None
        async with asyncio.timeout(step_timeout):
            sock = await _open_socket(loop, host, port)
        if context is None or proxy is None or not route.is_tls:
            return (await _adopt_socket(loop, build_connection, sock, context, host, step_timeout))[1]
        return await _open_tunnel(loop, build_connection, sock, route, proxy, context, step_timeout)
    except TimeoutError:
        raise ConnectFailed(f"no connection within {step_timeout:g} seconds") from None
    except (OSError, UnicodeError) as error:
        # ssl.SSLError is an OSError.
        raise ConnectFailed(str(error) or type(error).__name__) from error


async def _adopt_socket(
    loop: asyncio.AbstractEventLoop,
    build_protocol: Callable[[], Any],
    sock: socket.socket,
    context: ssl.SSLContext | None,
    host: str,
    step_timeout: float,
) -> tuple[asyncio.Transport, Any]:
    try:
        async with asyncio.timeout(step_timeout):
            if context is None:
                return await loop.create_connection(build_protocol, sock=sock)
            return await loop.create_connection(build_protocol, sock=sock, ssl=context, server_hostname=host)
    except BaseException:
        sock.close()
        raise


class _TunnelProtocol(asyncio.Protocol):
    """Reads a proxy's answer to CONNECT."""

    def __init__(self, answer: asyncio.Future[bytes]) -> None:
        self._answer, self._buffer = answer, b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._answer.done() and (HEAD_END in self._buffer or len(self._buffer) > MAX_HEAD_BYTES):
            self._answer.set_result(self._buffer)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        if not self._answer.done():
            self._answer.set_exception(ConnectFailed("the proxy closed the connection"))


async def _open_tunnel(
    loop: asyncio.AbstractEventLoop,
    build_connection: Callable[[], ClientConnection],
    sock: socket.socket,
    route: OriginRoute,
    proxy: Proxy,
    context: ssl.SSLContext,
    step_timeout: float,
) -> ClientConnection:
    """Connect through a proxy (RFC 9110, 9.3.6), then TLS with the host itself: the proxy sees no request."""
    answer: asyncio.Future[bytes] = loop.create_future()
    protocol = _TunnelProtocol(answer)
    transport, _ = await _adopt_socket(
        loop, lambda: protocol, sock, context if proxy.is_tls else None, proxy.host, step_timeout
    )
    try:
        host = f"[{route.host}]" if ":" in route.host else route.host
        authority = f"{host}:{route.port}"
        credentials = "" if proxy.authorization is None else f"proxy-authorization: {proxy.authorization}\r\n"
        transport.write(f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n{credentials}\r\n".encode())
        async with asyncio.timeout(step_timeout):
            _check_tunnel(await answer)
        async with asyncio.timeout(step_timeout):
            tunnel = await loop.start_tls(transport, protocol, context, server_hostname=route.host)
    except BaseException:
        transport.abort()
        raise
    if tunnel is None:
        raise ConnectFailed("the proxy closed the connection")
    connection = build_connection()
    tunnel.set_protocol(connection)
    connection.connection_made(tunnel)
    return connection


def _check_tunnel(answer: bytes) -> None:
    end = answer.find(HEAD_END) + len(HEAD_END)
    try:
        head = parse_response_head(answer[:end])[0]
    except HttpClientError as error:
        raise ConnectFailed(f"the proxy's answer is invalid: {error}") from None
    if not 200 <= head.status < 300:
        raise ConnectFailed(f"the proxy returned HTTP {head.status}")
    # Within the tunnel the client speaks first, so these bytes would be taken for the host's.
    if len(answer) > end:
        raise ConnectFailed("the proxy sent more than its answer")


async def _open_socket(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that answers. Raises OSError."""
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if len(infos) == 1:
        return await _connect_socket(loop, infos[0])
    errors: list[BaseException] = []
    pending: set[asyncio.Task[socket.socket]] = set()
    connected: list[socket.socket] = []
    # Families by turns: where one does not work, its addresses do not delay the other's.
    first = [info for info in infos if info[0] == infos[0][0]]
    others = [info for info in infos if info[0] != infos[0][0]]
    rest = [info for pair in zip_longest(first, others) for info in pair if info is not None]
    try:
        while not connected and (rest or pending):
            if rest:
                pending.add(asyncio.create_task(_connect_socket(loop, rest.pop(0))))
            done, pending = await asyncio.wait(
                pending, timeout=STAGGER if rest else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                if error is None:
                    connected.append(task.result())
                else:
                    errors.append(error)
    finally:
        for task in pending:
            task.cancel()
        results = await asyncio.gather(*pending, return_exceptions=True)
        late = [result for result in results if isinstance(result, socket.socket)]
        for sock in (*connected[1:], *late):
            sock.close()
    if not connected:
        raise errors[0] if errors else OSError(f"{host} has no address")
    return connected[0]


async def _connect_socket(loop: asyncio.AbstractEventLoop, info: AddressInfo) -> socket.socket:
    family, kind, proto, _, address = info
    sock = socket.socket(family, kind, proto)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
