"""The TCP ports of the servers of a process.

An engine that controls ports, as one that simulates faults does, has its own
implementation; see `EngineSpec.build_ports`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

import msgspec

from ..serving.port_faults import PortController
from ..settings import Settings
from .listener import listen


class ServedConnection(Protocol):
    """A connection that the server handles."""

    @property
    def transport(self) -> asyncio.Transport: ...

    def shutdown(self) -> None:
        """Close the connection, after the current response if there is one."""
        ...


class ServerPort(Protocol):
    """The port of a server."""

    @property
    def port(self) -> int:
        """The port number; 0 before `listen` if any free port will do."""
        ...

    def listen(self) -> socket.socket:
        """Listen and return the socket to accept from. Raises SettingsError."""
        ...

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
        ...


class ServerPorts(Protocol):
    """The ports of a process, in the order of its servers."""

    @property
    def ports(self) -> Sequence[ServerPort]: ...

    def build_controllers(self) -> Sequence[PortController | None]:
        """Build what the administrators' routes of each server control the ports with."""
        ...

    def close(self) -> None:
        """Close the ports permanently, before the server drains."""
        ...


class ListeningPort:
    """A port that listens as long as its server does."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def port(self) -> int:
        return self._settings.port

    def listen(self) -> socket.socket:
        listener = listen(self._settings)
        self._settings = msgspec.structs.replace(self._settings, port=listener.getsockname()[1])
        return listener

    def attach(
        self,
        server: asyncio.AbstractServer,
        protocol: Callable[[], asyncio.Protocol],
        connections: AbstractSet[ServedConnection],
    ) -> None:
        """The event loop closes the socket that it accepts from; nothing else is open."""


class ListeningPorts:
    """Ports that nothing controls."""

    def __init__(self, ports: Sequence[ListeningPort] = ()) -> None:
        self.ports = ports

    def build_controllers(self) -> Sequence[PortController | None]:
        return [None] * len(self.ports)

    def close(self) -> None:
        """The event loop closes the sockets."""
