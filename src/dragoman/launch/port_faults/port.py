"""A server's listening port. A simulated server's port can be closed, reset connections or leave them hanging.

Independent of HTTP: the protocol factory and the set of connections are injected.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Protocol, cast

import msgspec

from ...core.errors import Conflict
from ...serving.port_faults import ListenState, OpenConnectionPolicy
from ...settings import Settings, SettingsError
from ..listener import BACKLOG, listen

ClientAddress = tuple[str, int]
"""The client's host and port."""

_LINGER_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with a timeout of 0: closing sends a TCP reset."""


class ServedConnection(Protocol):
    """A connection that the server handles."""

    @property
    def transport(self) -> asyncio.Transport: ...

    def shutdown(self) -> None:
        """Close the connection, after the current response if there is one."""
        ...


class ServerPort:
    """A port. In all states but `closed` it keeps one listening socket, so that a state change refuses no
    connection.
    """

    def __init__(self, settings: Settings, tls: ssl.SSLContext | None = None) -> None:
        self._settings, self._tls = settings, tls
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
        return self._settings.time_scale

    def listen(self) -> socket.socket:
        """Listen and return a duplicate of the socket to accept from.

        Raises:
            SettingsError: the address is unavailable.
        """
        self._listener = listen(self._settings)
        self._settings = msgspec.structs.replace(self._settings, port=self._listener.getsockname()[1])
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
        self._server, self._protocol, self._connections = server, protocol, connections

    async def change_state(
        self, state: ListenState, policy: OpenConnectionPolicy, admin_client: ClientAddress | None = None
    ) -> None:
        """Change the state of the port.

        policy: what happens to open connections.
        admin_client: the client whose connection is never reset, since it awaits the response.

        Raises:
            Conflict: the port cannot be bound again; it stays closed.
        """
        async with self._change_lock:
            if state != self.state:
                await self._switch(state)
            if state != "listening":
                self._end_connections(policy, admin_client)

    def close(self) -> None:
        """Close the port permanently."""
        if self._listener is not None:
            self._listener.close()
        self._stop_accepting()

    async def _switch(self, state: ListenState) -> None:
        listener = self._listener or self._listen_again()
        self._stop_accepting()
        self.state = state
        if state == "closed":
            listener.close()
            return
        self._listener = listener
        protocol_factory = {"resetting": _ResetProtocol, "hanging": self._build_hanging_protocol}.get(
            state, self._protocol
        )
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(protocol_factory, sock=listener.dup(), backlog=BACKLOG, ssl=self._tls)

    def _listen_again(self) -> socket.socket:
        try:
            return listen(self._settings)
        except SettingsError as error:
            raise Conflict(str(error), param="state") from error

    def _stop_accepting(self) -> None:
        """Stop accepting, and reset the hanging connections."""
        self._listener = None
        if self._server is not None:
            self._server.close()
        for transport in tuple(self._hanging):
            _reset(transport)

    def _end_connections(self, policy: OpenConnectionPolicy, admin_client: ClientAddress | None) -> None:
        for connection in tuple(self._connections):
            transport = connection.transport
            if transport.get_extra_info("sockname")[1] != self.port:
                continue
            # Not the connection over which the command came: its answer would be lost.
            if policy == "finish" or transport.get_extra_info("peername")[:2] == admin_client:
                connection.shutdown()
            else:
                _reset(transport)

    def _build_hanging_protocol(self) -> asyncio.Protocol:
        return _HangingProtocol(self._hanging)


class _ResetProtocol(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        _reset(cast("asyncio.Transport", transport))


class _HangingProtocol(asyncio.Protocol):
    """Accepts a connection and never responds. transports: all hanging connections of the port."""

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
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    transport.abort()
