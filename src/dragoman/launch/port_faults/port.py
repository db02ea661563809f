"""The port of a server. A simulated one's can be closed, reset whoever connects, or take connections and say nothing.

Knows no HTTP: how a connection is served, and which are, is lent to it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Protocol, cast

import msgspec

from ...core.errors import Conflict
from ...serving.port_faults.spec import ListenState, OpenConnectionPolicy
from ...settings import Settings, SettingsError
from ..listener import BACKLOG, listen

ClientAddress = tuple[str, int]
"""The address that a connection comes from."""

_LINGER_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for no seconds: closing resets."""


class ServedConnection(Protocol):
    """One that is served."""

    @property
    def transport(self) -> asyncio.Transport: ...

    def shutdown(self) -> None:
        """Close it: now if nothing is answered on it, else after that."""
        ...


class ServerPort:
    """A port. In all states but `closed` it is one listening socket, so that nobody is refused between two of them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
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
        """What to accept connections from. Raises SettingsError."""
        self._listener = listen(self._settings)
        self._settings = msgspec.structs.replace(self._settings, port=self._listener.getsockname()[1])
        return self._listener.dup()

    def attach(
        self,
        server: asyncio.AbstractServer,
        protocol: Callable[[], asyncio.Protocol],
        connections: AbstractSet[ServedConnection],
    ) -> None:
        """server: accepts from what `open` returned. connections: those that are served, also those of other ports."""
        self._server, self._protocol, self._connections = server, protocol, connections

    async def change_state(
        self, state: ListenState, policy: OpenConnectionPolicy, admin_client: ClientAddress | None = None
    ) -> None:
        """running: what becomes of connections that are served. orderer: whose connection is never cut.

        Raises Conflict if the port cannot be had again; it stays closed then.
        """
        async with self._change_lock:
            if state != self.state:
                await self._switch(state)
            if state != "listening":
                self._end_connections(policy, admin_client)

    def close(self) -> None:
        """For good."""
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
        self._server = await loop.create_server(protocol_factory, sock=listener.dup(), backlog=BACKLOG)

    def _listen_again(self) -> socket.socket:
        try:
            return listen(self._settings)
        except SettingsError as error:
            raise Conflict(str(error), param="state") from error

    def _stop_accepting(self) -> None:
        """Nobody is accepted, and who was kept waiting for nothing is let go."""
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
    """Takes whatever it is told. kept: those that are silent with it."""

    def __init__(self, transports: set[asyncio.Transport]) -> None:
        self._transports = transports
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transports.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - so it is named in asyncio
        if self._transport is not None:
            self._transports.discard(self._transport)


def _reset(transport: asyncio.Transport) -> None:
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    transport.abort()
