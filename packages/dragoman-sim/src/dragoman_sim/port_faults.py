"""Port fault injection: a simulated server's port can be closed, reset connections, or
leave them hanging.

An administrator schedules the faults. The module is independent of HTTP: the protocol
factory and the set of connections are injected.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import zip_longest
from typing import Protocol, cast

import msgspec

from dragoman.core.errors import Conflict, RequestError
from dragoman.launch.listener import BACKLOG, listen
from dragoman.serving.port_faults import ListenState, OpenConnectionPolicy, PortCommand, PortState
from dragoman.settings import Settings, SettingsError

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
        return self._settings.time_scale

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
                        ssl=self._tls,
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


# The schedule of the faults.

log = logging.getLogger("dragoman.ports")

LISTEN_COMMAND = PortCommand("listening")


class CancellableTimer(Protocol):
    """A timer handle that can be cancelled."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], CancellableTimer]
"""Schedules a callback after a number of seconds."""

PlannedChange = tuple[float, PortCommand]
"""Seconds from the start of the schedule, and the command."""


def plan_changes(commands: Sequence[PortCommand]) -> list[PlannedChange]:
    """Plan a port's state changes: a command lasts until its end or the next command;
    otherwise the port listens.

    Raises:
        RequestError: two commands begin at the same time.
    """
    ordered = sorted(commands, key=lambda command: command.after)
    planned: list[PlannedChange] = (
        [] if ordered and ordered[0].after == 0 else [(0.0, LISTEN_COMMAND)]
    )
    for command, following in zip_longest(ordered, ordered[1:]):
        if following is not None and following.after == command.after:
            raise RequestError(f"Two actions start after {command.after:g} seconds.", param="after")
        planned.append((command.after, command))
        end = None if command.seconds is None else command.after + command.seconds
        if end is not None and (following is None or end < following.after):
            planned.append((end, LISTEN_COMMAND))
    return planned


class PortSchedule:
    """The scheduled faults of one port."""

    def __init__(self, port: ServerPort, call_later: CallLater) -> None:
        self.port = port
        self._call_later = call_later
        self._timers: list[CancellableTimer] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.changes: Sequence[PlannedChange] = [(0.0, LISTEN_COMMAND)]
        self.num_applied = 1

    @property
    def state(self) -> PortState:
        return PortState(self.port.port, self.port.state, len(self.changes) - self.num_applied)

    async def apply(self, planned: Sequence[PlannedChange], client: ClientAddress | None) -> None:
        """Replace the schedule. The first change is applied at once and spares the
        connection of `client`.

        Raises:
            Conflict: the port cannot be bound again.
        """
        self.cancel()
        self.changes = planned
        self.num_applied = 1
        # Set before the first await: a concurrent request may replace the schedule and
        # must see these timers.
        self._timers = [
            self._call_later(seconds / self.port.time_scale, partial(self._start_change, command))
            for seconds, command in planned[1:]
        ]
        await self._change(planned[0][1], client)

    def cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _start_change(self, command: PortCommand) -> None:
        self.num_applied += 1
        task = asyncio.get_running_loop().create_task(self._change_or_log(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _change_or_log(self, command: PortCommand) -> None:
        try:
            await self._change(command, None)
        except Conflict as error:
            log.error("port %d remains closed: %s", self.port.port, error)

    async def _change(self, command: PortCommand, client: ClientAddress | None) -> None:
        await self.port.change_state(command.state, command.running or "cut", client)


class ServerPorts:
    """The ports of a process, in the order of its servers."""

    def __init__(self, ports: Sequence[ServerPort], call_later: CallLater | None = None) -> None:
        self.ports = tuple(ports)
        self._schedules = [PortSchedule(port, call_later or _call_later_on_loop) for port in ports]

    def states(self) -> Sequence[PortState]:
        return [schedule.state for schedule in self._schedules]

    async def apply(
        self, own_port: ServerPort, commands: Sequence[PortCommand], client: ClientAddress | None
    ) -> None:
        """Validate and apply commands.

        own_port: the port of the server that received the request.

        Raises:
            RequestError: a command is invalid, or no port would remain to receive
                further commands.
        """
        ports_by_number = {port.port: port for port in self.ports}
        commands_by_port: dict[ServerPort, list[PortCommand]] = {} if commands else {own_port: []}
        for command in commands:
            port = own_port if command.port is None else ports_by_number.get(command.port)
            if port is None:
                port_list = ", ".join(map(str, ports_by_number))
                raise RequestError(
                    f"No server of this process listens on port {command.port}; its ports are "
                    f"{port_list}.",
                    param="port",
                )
            commands_by_port.setdefault(port, []).append(command)
        # All plans are validated before the first is applied, so that a rejected
        # request changes no port.
        plans = {
            port: plan_changes(port_commands) for port, port_commands in commands_by_port.items()
        }
        all_plans = [plans.get(schedule.port, schedule.changes) for schedule in self._schedules]
        if all(planned[-1][1].state != "listening" for planned in all_plans):
            message = (
                "No port would remain to receive further commands; limit a fault with `seconds`."
            )
            raise RequestError(message, param="seconds")
        for schedule in self._schedules:
            if schedule.port in plans:
                await schedule.apply(
                    plans[schedule.port], client if schedule.port is own_port else None
                )

    def close(self) -> None:
        for schedule in self._schedules:
            schedule.cancel()
            schedule.port.close()


def _call_later_on_loop(seconds: float, call: Callable[[], None]) -> CancellableTimer:
    return asyncio.get_running_loop().call_later(seconds, call)


class ServerPortController:
    """Controls all ports of the process through one server. Implements
    `serving.port_faults.PortController`.
    """

    def __init__(self, own_port: ServerPort, server_ports: ServerPorts) -> None:
        self._own_port = own_port
        self._server_ports = server_ports

    def states(self) -> Sequence[PortState]:
        return self._server_ports.states()

    async def apply(self, commands: Sequence[PortCommand], client: ClientAddress | None) -> None:
        await self._server_ports.apply(self._own_port, commands, client)
