"""Transports on connected sockets, with TLS if there is a context."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any


async def adopt_socket(
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
            return await loop.create_connection(
                build_protocol, sock=sock, ssl=context, server_hostname=host
            )
    except BaseException:
        sock.close()
        raise
