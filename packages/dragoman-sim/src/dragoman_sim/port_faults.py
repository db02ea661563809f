"""A port of a simulated server, which can be closed, reset connections, or leave them
hanging.

Independent of HTTP: the protocol factory and the set of connections are injected.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import cast

import msgspec

from dragoman.core.errors import Conflict
from dragoman.launch.listener import BACKLOG, listen
from dragoman.launch.ports import ServedConnection
from dragoman.serving.port_faults import (
    ListenState,
    OpenConnectionPolicy,
)
from dragoman.settings import Settings, SettingsError

from .settings import SimulatorSettings

ClientAddress = tuple[str, int]
"""The client's host and port."""

_LINGER_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with a timeout of 0: closing sends a TCP reset."""


class FaultyPort:
    """The port of a server.

    In all states except `closed` it keeps one listening socket, so that no connection
    is refused at a state change.
    """

    def __init__(self, settings: Settings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._tls = tls
        self.state: ListenState = "listening"
        self._change_lock = asyncio.Lock()
        self._hanging: set[asyncio.Transport] = set()
        self._listener: socket.socket | None = None
        self._server: asyncio.AbstractServer | None = None
        self._protocol: Callable[[], asyncio.Protocol] = asyncio.Protocol
        self._connections: AbstractSet[ServedConnection] = frozenset()

    @property
    def port(self) -> int:
        return self._settings.port

    @property
    def time_scale(self) -> float:
        return self._settings.of(SimulatorSettings).time_scale

    def listen(self) -> socket.socket:
        """Listen and return a duplicate of the socket to accept from.

        Raises:
            SettingsError: the address is unavailable.
        """
        self._listener = listen(self._settings)
        self._settings = msgspec.structs.replace(
            self._settings, port=self._listener.getsockname()[1]
        )
        # The event loop closes the socket that it accepts from; the original keeps the
        # port bound.
        return self._listener.dup()

    def attach(
        self,
        server: asyncio.AbstractServer,
        protocol: Callable[[], asyncio.Protocol],
        connections: AbstractSet[ServedConnection],
    ) -> None:
        """Attach the running server.

        server: accepts from the socket that `listen` returned.
        protocol: factory for accepted connections.
        connections: all open connections of the process, including other ports'.
        """
        self._server = server
        self._protocol = protocol
        self._connections = connections

    async def change_state(
        self,
        state: ListenState,
        policy: OpenConnectionPolicy,
        admin_client: ClientAddress | None = None,
    ) -> None:
        """Change the state of the port.

        policy: what happens to open connections.
        admin_client: the client whose connection is never reset, since it awaits the
            response.

        Raises:
            Conflict: the port cannot be bound again; it stays closed.
        """
        async with self._change_lock:
            if state != self.state:
                try:
                    listener = self._listener or listen(self._settings)
                except SettingsError as error:
                    raise Conflict(str(error), param="state") from error
                self._stop_accepting()
                self.state = state
                if state == "closed":
                    listener.close()
                else:
                    self._listener = listener
                    factories = {
                        "resetting": _ResetProtocol,
                        "hanging": self._build_hanging_protocol,
                    }
                    self._server = await asyncio.get_running_loop().create_server(
                        factories.get(state, self._protocol),
                        sock=listener.dup(),
                        backlog=BACKLOG,
                        # A listening server's connections have TLS of their own.
                        ssl=None if state == "listening" else self._tls,
                    )
            if state == "listening":
                return
            for connection in tuple(self._connections):
                transport = connection.transport
                if transport.get_extra_info("sockname")[1] != self.port:
                    continue
                # The connection of the command itself is never reset: the response
                # would be lost.
                if policy == "finish" or transport.get_extra_info("peername")[:2] == admin_client:
                    connection.shutdown()
                else:
                    _reset(transport)

    def close(self) -> None:
        """Close the port permanently."""
        if self._listener is not None:
            self._listener.close()
        self._stop_accepting()

    def _stop_accepting(self) -> None:
        """Stop accepting, and reset the hanging connections."""
        self._listener = None
        if self._server is not None:
            self._server.close()
        for transport in tuple(self._hanging):
            _reset(transport)

    def _build_hanging_protocol(self) -> asyncio.Protocol:
        return _HangingProtocol(self._hanging)


class _ResetProtocol(asyncio.Protocol):
    """Resets each connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        _reset(cast("asyncio.Transport", transport))


class _HangingProtocol(asyncio.Protocol):
    """Accepts a connection and never responds.

    transports: all hanging connections of the port.
    """

    def __init__(self, transports: set[asyncio.Transport]) -> None:
        self._transports = transports
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transports.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        if self._transport is not None:
            self._transports.discard(self._transport)


def _reset(transport: asyncio.Transport) -> None:
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET
    )
    transport.abort()
