"""When the ports of simulated servers stop listening and listen again, by an administrator's orders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Protocol

from ..core.errors import Conflict, RequestError
from ..serving.listening import Order, PortState
from .door import Client, Door

log = logging.getLogger("dragoman.ports")

LISTEN = Order("listening")


class Timer(Protocol):
    """One that can be stopped before its time."""

    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Timer]
"""Calls something in so many seconds."""

Change = tuple[float, Order]
"""In so many seconds."""


def changes(orders: Sequence[Order]) -> list[Change]:
    """What becomes of a port, and when: each order holds until it is over or the next begins, and the port listens
    where none holds. Raises RequestError for two that begin together.
    """
    each = sorted(orders, key=lambda order: order.after)
    out: list[Change] = [] if each and each[0].after == 0 else [(0.0, LISTEN)]
    for order, following in zip_longest(each, each[1:]):
        if following is not None and following.after == order.after:
            raise RequestError(f"Two actions start after {order.after:g} seconds.", param="after")
        out.append((order.after, order))
        end = None if order.seconds is None else order.after + order.seconds
        if end is not None and (following is None or end < following.after):
            out.append((end, LISTEN))
    return out


class Timetable:
    """What was ordered of one port."""

    def __init__(self, door: Door, later: Later) -> None:
        self.door, self._later = door, later
        self._timers: list[Timer] = []
        self._begun: set[asyncio.Task[None]] = set()
        self.changes: Sequence[Change] = [(0.0, LISTEN)]
        self.done = 1

    @property
    def state(self) -> PortState:
        return PortState(self.door.port, self.door.state, len(self.changes) - self.done)

    async def set(self, planned: Sequence[Change], client: Client | None) -> None:
        """In place of what there was; the first at once, for whoever is on this connection. Raises Conflict."""
        self.cancel()
        self.changes, self.done = planned, 1
        # Before anything is awaited: another order may come meanwhile, and cancels them.
        self._timers = [self._in(seconds / self.door.time_scale, order) for seconds, order in planned[1:]]
        await self._change(planned[0][1], client)

    def cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _in(self, seconds: float, order: Order) -> Timer:
        def begin() -> None:
            self.done += 1
            task = asyncio.get_running_loop().create_task(self._try(order))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

        return self._later(seconds, begin)

    async def _try(self, order: Order) -> None:
        try:
            await self._change(order, None)
        except Conflict as error:
            log.error("port %d remains closed: %s", self.door.port, error)

    async def _change(self, order: Order, client: Client | None) -> None:
        await self.door.become(order.state, order.running or "cut", client)


class Doors:
    """The ports of a process, in the order of its servers."""

    def __init__(self, doors: Sequence[Door], later: Later | None = None) -> None:
        self.each = tuple(doors)
        self._timetables = [Timetable(door, later or _call_later) for door in doors]

    def states(self) -> Sequence[PortState]:
        return [timetable.state for timetable in self._timetables]

    async def order(self, asked: Door, orders: Sequence[Order], client: Client | None) -> None:
        """asked: whose server took them. Raises RequestError."""
        new = self._planned(asked, orders)
        after = [new.get(timetable.door, timetable.changes) for timetable in self._timetables]
        if all(planned[-1][1].state != "listening" for planned in after):
            message = "No port would be left to order it from that one listens again; say for how many `seconds`."
            raise RequestError(message, param="seconds")
        for timetable in self._timetables:
            if timetable.door in new:
                await timetable.set(new[timetable.door], client if timetable.door is asked else None)

    def close(self) -> None:
        for timetable in self._timetables:
            timetable.cancel()
            timetable.door.close()

    def _planned(self, asked: Door, orders: Sequence[Order]) -> dict[Door, list[Change]]:
        """Raises RequestError."""
        ports = {door.port: door for door in self.each}
        of: dict[Door, list[Order]] = {} if orders else {asked: []}
        for order in orders:
            door = asked if order.port is None else ports.get(order.port)
            if door is None:
                listed = ", ".join(map(str, ports))
                raise RequestError(
                    f"No server of this process listens on port {order.port}; its ports are {listed}.", param="port"
                )
            of.setdefault(door, []).append(order)
        return {door: changes(each) for door, each in of.items()}


def _call_later(seconds: float, call: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, call)


class SeenFrom:
    """The doors, as the server behind one of them has them. See `serving.listening.Listening`."""

    def __init__(self, own: Door, doors: Doors) -> None:
        self._own, self._doors = own, doors

    def states(self) -> Sequence[PortState]:
        return self._doors.states()

    async def order(self, orders: Sequence[Order], client: Client | None) -> None:
        await self._doors.order(self._own, orders, client)
