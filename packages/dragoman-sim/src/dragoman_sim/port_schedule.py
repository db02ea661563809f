"""The schedule of the port faults of a process, which administrators set."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Protocol

from dragoman.core.errors import Conflict, RequestError
from dragoman.serving.port_faults import (
    PortCommand,
    PortController,
    PortState,
)

from .port_faults import ClientAddress, FaultyPort

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

    def __init__(self, port: FaultyPort, call_later: CallLater) -> None:
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


class FaultyPorts:
    """The ports of a process, in the order of its servers."""

    def __init__(self, ports: Sequence[FaultyPort], call_later: CallLater | None = None) -> None:
        self.ports = tuple(ports)
        self._schedules = [PortSchedule(port, call_later or _call_later_on_loop) for port in ports]

    def build_controllers(self) -> Sequence[PortController | None]:
        return [FaultyPortController(port, self) for port in self.ports]

    def states(self) -> Sequence[PortState]:
        return [schedule.state for schedule in self._schedules]

    async def apply(
        self, own_port: FaultyPort, commands: Sequence[PortCommand], client: ClientAddress | None
    ) -> None:
        """Validate and apply commands.

        own_port: the port of the server that received the request.

        Raises:
            RequestError: a command is invalid, or no port would remain to receive
                further commands.
        """
        ports_by_number = {port.port: port for port in self.ports}
        commands_by_port: dict[FaultyPort, list[PortCommand]] = {} if commands else {own_port: []}
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


class FaultyPortController:
    """Controls all ports of the process through one server. Implements
    `serving.port_faults.PortController`.
    """

    def __init__(self, own_port: FaultyPort, server_ports: FaultyPorts) -> None:
        self._own_port = own_port
        self._server_ports = server_ports

    def states(self) -> Sequence[PortState]:
        return self._server_ports.states()

    async def apply(self, commands: Sequence[PortCommand], client: ClientAddress | None) -> None:
        await self._server_ports.apply(self._own_port, commands, client)
