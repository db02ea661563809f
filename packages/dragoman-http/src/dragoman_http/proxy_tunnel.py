"""Tunnels through a proxy (CONNECT, RFC 9110, 9.3.6)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from .client_connection import MAX_HEAD_BYTES, ClientConnection
from .errors import ConnectFailed, HttpClientError
from .origin_route import OriginRoute
from .proxies import Proxy
from .response_head import (
    HEAD_END,
    parse_response_head,
)
from .socket_transport import adopt_socket


class _TunnelProtocol(asyncio.Protocol):
    """Reads a proxy's response to CONNECT."""

    def __init__(self, answer: asyncio.Future[bytes]) -> None:
        self._answer = answer
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._answer.done() and (
            HEAD_END in self._buffer or len(self._buffer) > MAX_HEAD_BYTES
        ):
            self._answer.set_result(self._buffer)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        if not self._answer.done():
            self._answer.set_exception(ConnectFailed("the proxy closed the connection"))


async def open_tunnel(
    loop: asyncio.AbstractEventLoop,
    build_connection: Callable[[], ClientConnection],
    sock: socket.socket,
    route: OriginRoute,
    proxy: Proxy,
    context: ssl.SSLContext,
    step_timeout: float,
) -> ClientConnection:
    """Open a tunnel through a proxy (RFC 9110, 9.3.6), then TLS to the host itself: the
    proxy sees no request.
    """
    answer: asyncio.Future[bytes] = loop.create_future()
    protocol = _TunnelProtocol(answer)
    transport, _ = await adopt_socket(
        loop, lambda: protocol, sock, context if proxy.is_tls else None, proxy.host, step_timeout
    )
    try:
        host = f"[{route.host}]" if ":" in route.host else route.host
        authority = f"{host}:{route.port}"
        credentials = (
            "" if proxy.authorization is None else f"proxy-authorization: {proxy.authorization}\r\n"
        )
        transport.write(
            f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n{credentials}\r\n".encode()
        )
        async with asyncio.timeout(step_timeout):
            received = await answer
        end = received.find(HEAD_END) + len(HEAD_END)
        try:
            status = parse_response_head(received[:end])[0].status
        except HttpClientError as error:
            raise ConnectFailed(f"the proxy's response is invalid: {error}") from None
        if not 200 <= status < 300:
            raise ConnectFailed(f"the proxy returned HTTP {status}")
        # In TLS the client sends first, so these bytes cannot be the host's but would
        # be taken for them.
        if len(received) > end:
            raise ConnectFailed("the proxy sent bytes after its response")
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
