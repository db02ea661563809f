"""The TLS handshake of an accepted connection, within the server's limits.

The TLS of the event loop's servers knows neither the limits of connections nor the time
of the head: a client that sent nothing held its connection and 50 KiB for a minute.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from .server_context import ServerContext
from .sockets import read_addresses, reset_transport


class TlsHandshake(asyncio.Protocol):
    """The protocol of a connection until its handshake is complete.

    It counts as a connection. Above the limits it is reset, since a 503 would need the
    handshake.

    context: of the server.
    tls: the certificate.
    build_protocol: builds the protocol of the encrypted connection, which calls its
        argument when it is connected.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        context: ServerContext,
        tls: ssl.SSLContext,
        build_protocol: Callable[[Callable[[], None]], asyncio.Protocol],
    ) -> None:
        self._context = context
        self._tls = tls
        self._build_protocol = build_protocol
        self._address: str | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.transport = transport
        client, _ = read_addresses(transport)
        self._address = None if client is None else client[0]
        self._context.connections.add(self)
        if not self._context.admit(self, self._address):
            self._release()
            reset_transport(transport)
            return
        # `start_tls` would lose what uvloop reads until then, so the socket gets a new
        # transport, before this one reads.
        sock = transport.get_extra_info("socket")
        try:
            own: socket.socket = sock.dup()
        except OSError:
            # No file descriptor is left.
            self._release()
            reset_transport(transport)
            return
        own.setblocking(False)
        transport.abort()
        self._task = self._context.loop.create_task(self._run(own))
        # `_run` never begins if a shutdown comes before its first step.
        self._task.add_done_callback(lambda task: self._end(task, own))

    def shutdown(self) -> None:
        """Graceful shutdown: nothing was requested yet."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, sock: socket.socket) -> None:
        limits = self._context.limits
        try:
            await self._context.loop.connect_accepted_socket(
                lambda: self._build_protocol(self._release),
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=limits.head_timeout,
                ssl_shutdown_timeout=limits.linger_timeout,
            )
        except (OSError, asyncio.CancelledError):
            # A failed handshake, one that took too long, a lost connection, or the
            # server's shutdown.
            sock.close()

    def _end(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        if task.cancelled():
            sock.close()
        self._release()

    def _release(self) -> None:
        if self in self._context.connections:
            self._context.connections.discard(self)
            self._context.release(self, self._address)
