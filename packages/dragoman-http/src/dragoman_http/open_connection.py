"""Opening of connections: TCP or a Unix socket, TLS, a proxy's tunnel."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from .client_connection import ClientConnection
from .errors import ConnectFailed
from .happy_eyeballs import open_socket
from .origin_route import OriginRoute
from .proxy_tunnel import open_tunnel
from .socket_transport import adopt_socket


async def open_connection(
    route: OriginRoute,
    build_connection: Callable[[], ClientConnection],
    find_tls_context: Callable[[], ssl.SSLContext],
    step_timeout: float,
) -> ClientConnection:
    """Open a connection.

    step_timeout: seconds for each step: name resolution and TCP, a proxy's tunnel, TLS.

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
        context = (
            find_tls_context() if route.is_tls or (proxy is not None and proxy.is_tls) else None
        )
        async with asyncio.timeout(step_timeout):
            sock = await open_socket(loop, route.address or host, port)
        if context is None or proxy is None or not route.is_tls:
            return (await adopt_socket(loop, build_connection, sock, context, host, step_timeout))[
                1
            ]
        return await open_tunnel(loop, build_connection, sock, route, proxy, context, step_timeout)
    except TimeoutError:
        raise ConnectFailed(f"no connection within {step_timeout:g} seconds") from None
    except (OSError, UnicodeError) as error:
        # ssl.SSLError is an OSError.
        raise ConnectFailed(str(error) or type(error).__name__) from error
