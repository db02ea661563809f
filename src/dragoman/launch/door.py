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

from ..core.errors import Conflict
from ..serving.listening import Running, State
from ..settings import Settings, SettingsError
from .listener import BACKLOG, listen

Client = tuple[str, int]
"""The address that a connection comes from."""

_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER for no seconds: closing resets."""


class Connection(Protocol):
    """One that is served."""

    @property
    def transport(self) -> asyncio.Transport: ...

    def shutdown(self) -> None:
        """Close it: now if nothing is answered on it, else after that."""
        ...


class Door:
    """A port. In all states but `closed` it is one listening socket, so that nobody is refused between two of them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.state: State = "listening"
        self._changing = asyncio.Lock()
        self._silent: set[asyncio.Transport] = set()
        self._listener: socket.socket | None = None
        self._server: asyncio.AbstractServer | None = None
        self._protocol: Callable[[], asyncio.Protocol] = asyncio.Protocol
        self._connections: AbstractSet[Connection] = frozenset()

    @property
    def port(self) -> int:
        return self._settings.port

    @property
    def time_scale(self) -> float:
        return self._settings.time_scale

    def open(self) -> socket.socket:
        """What to accept connections from. Raises SettingsError."""
        self._listener = listen(self._settings)
        self._settings = msgspec.structs.replace(self._settings, port=self._listener.getsockname()[1])
        return self._listener.dup()

    def lend(
        self,
        server: asyncio.AbstractServer,
        protocol: Callable[[], asyncio.Protocol],
        connections: AbstractSet[Connection],
    ) -> None:
        """server: accepts from what `open` returned. connections: those that are served, also those of other ports."""
        self._server, self._protocol, self._connections = server, protocol, connections

    async def become(self, state: State, running: Running, orderer: Client | None = None) -> None:
        """running: what becomes of connections that are served. orderer: whose connection is never cut.

        Raises Conflict if the port cannot be had again; it stays closed then.
        """
        async with self._changing:
            if state != self.state:
                await self._turn(state)
            if state != "listening":
                self._end(running, orderer)

    def close(self) -> None:
        """For good."""
        if self._listener is not None:
            self._listener.close()
        self._stop()

    async def _turn(self, state: State) -> None:
        listener = self._listener or self._listen_again()
        self._stop()
        self.state = state
        if state == "closed":
            listener.close()
            return
        self._listener = listener
        accepted = {"resetting": _Reset, "hanging": self._keep_silent}.get(state, self._protocol)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(accepted, sock=listener.dup(), backlog=BACKLOG)

    def _listen_again(self) -> socket.socket:
        try:
            return listen(self._settings)
        except SettingsError as error:
            raise Conflict(str(error), param="state") from error

    def _stop(self) -> None:
        """Nobody is accepted, and who was kept waiting for nothing is let go."""
        self._listener = None
        if self._server is not None:
            self._server.close()
        for transport in tuple(self._silent):
            _reset(transport)

    def _end(self, running: Running, orderer: Client | None) -> None:
        for connection in tuple(self._connections):
            transport = connection.transport
            if transport.get_extra_info("sockname")[1] != self.port:
                continue
            if running == "finish" or transport.get_extra_info("peername")[:2] == orderer:
                connection.shutdown()
            else:
                _reset(transport)

    def _keep_silent(self) -> asyncio.Protocol:
        return _Silent(self._silent)


class _Reset(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        _reset(cast("asyncio.Transport", transport))


class _Silent(asyncio.Protocol):
    """Takes whatever it is told. kept: those that are silent with it."""

    def __init__(self, kept: set[asyncio.Transport]) -> None:
        self._kept = kept
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._kept.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - so it is named in asyncio
        if self._transport is not None:
            self._kept.discard(self._transport)


def _reset(transport: asyncio.Transport) -> None:
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()
