"""Ports of simulated servers that are closed, reset connections, or hang, on real
sockets.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from dragoman.core.errors import RequestError
from dragoman.launch.graceful_shutdown import Server, ShutdownConfig
from dragoman.launch.port_dispatcher import PortDispatcher
from dragoman.launch.server_assembly import assemble_server
from dragoman.launch.uvicorn_config import build_uvicorn_config
from dragoman.serving.port_faults import PortCommand
from dragoman.settings import load_settings
from dragoman_sim.instances import expand_instances
from dragoman_sim.port_faults import FaultyPort
from dragoman_sim.port_schedule import FaultyPortController, FaultyPorts, plan_changes

ENDLESS = {"prompt": "Hello", "max_tokens": 5_000, "ignore_eos": True, "stream": True}
SHORT = {**ENDLESS, "max_tokens": 40}


@dataclass
class Timers:
    """Records scheduled callbacks with their delays in seconds."""

    pending: dict[float, Callable[[], None]] = field(
        default_factory=dict[float, Callable[[], None]]
    )

    def later(self, seconds: float, call: Callable[[], None]) -> Timers:
        self.pending[seconds] = call
        return self

    def cancel(self) -> None:
        self.pending.clear()


@dataclass
class Fleet:
    ports: list[int]
    timers: Timers
    writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    async def order(self, by: int, *orders: object) -> httpx2.Response:
        async with self.client(by) as client:
            return await client.put(
                "/dragoman/listener", json=orders[0] if len(orders) == 1 else orders
            )

    def client(self, port: int) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)

    async def states(self, by: int) -> list[str]:
        async with self.client(by) as client:
            answer = await client.get("/dragoman/listener")
        return [one["state"] for one in answer.json()["ports"]]

    async def connect(self, port: int, data: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self.writers.append(writer)
        writer.write(data)
        return reader

    async def stream(self, port: int, body: Mapping[str, object]) -> asyncio.StreamReader:
        """Open a stream that has begun."""
        data = json.dumps(body).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
            b"application/json\r\n"
        )
        head += b"content-length: %d\r\n\r\n" % len(data)
        reader = await self.connect(port, head + data)
        await reader.readuntil(b"data: ")
        return reader

    async def due(self, seconds: float, *, becomes: list[str]) -> None:
        """Run due callbacks. becomes: the states of all ports that the last port must
        soon report.
        """
        self.timers.pending.pop(seconds)()
        while await self.states(self.ports[-1]) != becomes:
            pass


@pytest_asyncio.fixture
async def fleet() -> AsyncGenerator[Fleet]:
    settings = load_settings(
        {"model": "sim", "port": "0", "store": "none", "instances": "2", "time_scale": "2"}, {}
    )
    timers = Timers()
    ports_of_process = FaultyPorts(
        [FaultyPort(one) for one in expand_instances(settings)], timers.later
    )
    each = [
        assemble_server(one, b"", FaultyPortController(port, ports_of_process))
        for one, port in zip(expand_instances(settings), ports_of_process.ports, strict=True)
    ]
    sockets = [port.listen() for port in ports_of_process.ports]
    ports = [port.port for port in ports_of_process.ports]
    app = PortDispatcher({port: one.application for port, one in zip(ports, each, strict=True)})
    server = Server(
        build_uvicorn_config(app, settings),
        *(one.models for one in each),
        shutdown_config=ShutdownConfig(timeout=0.0),
        server_ports=ports_of_process,
    )
    task = asyncio.create_task(server.serve(sockets=sockets))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0)
    fleet = Fleet(ports, timers)
    yield fleet
    for writer in fleet.writers:
        writer.close()
    server.should_exit = True
    await task


async def test_closed_port_refuses_connections_until_reopened(fleet: Fleet) -> None:
    one, other = fleet.ports
    answer = await fleet.order(other, {"port": one, "state": "closed"})
    assert answer.status_code == 200, answer.text
    with pytest.raises(ConnectionRefusedError):
        await fleet.connect(one)
    assert await fleet.states(other) == ["closed", "listening"]
    await fleet.order(other, {"port": one, "state": "listening"})
    assert await fleet.states(one) == ["listening", "listening"]


async def test_running_responses_are_reset_when_port_closes(fleet: Fleet) -> None:
    one, other = fleet.ports
    here = await fleet.stream(one, ENDLESS)
    there = await fleet.stream(other, ENDLESS)
    await fleet.order(other, {"port": one, "state": "closed"})
    with pytest.raises(ConnectionResetError):
        await here.read(-1)
    await there.readuntil(b"data: ")


async def test_port_close_with_finish_completes_running_responses(fleet: Fleet) -> None:
    one, other = fleet.ports
    reader = await fleet.stream(one, SHORT)
    async with fleet.client(one) as idle:
        await idle.get("/health")
        await fleet.order(other, {"port": one, "state": "closed", "running": "finish"})
        with pytest.raises(httpx2.ConnectError):
            await idle.get("/health")
    assert (await reader.read(-1)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_resetting_and_hanging_ports_affect_new_connections(fleet: Fleet) -> None:
    one, other = fleet.ports
    await fleet.order(other, {"port": one, "state": "resetting"})
    with pytest.raises(ConnectionResetError):
        await (await fleet.connect(one)).read()
    await fleet.order(other, {"port": one, "state": "hanging"})
    reader = await fleet.connect(one, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    response = asyncio.create_task(reader.read())
    assert await fleet.states(other) == ["hanging", "listening"]
    assert not response.done()
    await fleet.order(other, {"port": one, "state": "listening"})
    with pytest.raises(ConnectionResetError):
        await response
    assert await fleet.states(one) == ["listening", "listening"]


async def test_request_closing_own_port_is_answered(fleet: Fleet) -> None:
    one, other = fleet.ports
    answer = await fleet.order(one, {"state": "closed"})
    assert answer.json()["ports"] == [
        {"port": one, "state": "closed", "planned": 0},
        {"port": other, "state": "listening", "planned": 0},
    ]


async def test_planned_port_faults_follow_simulated_time(fleet: Fleet) -> None:
    one, other = fleet.ports
    silent = {"port": one, "state": "hanging", "after": 60, "seconds": 30}
    answer = await fleet.order(
        other, {"port": one, "state": "closed", "after": 30, "seconds": 5}, silent
    )
    assert [at["planned"] for at in answer.json()["ports"]] == [4, 0]
    assert sorted(fleet.timers.pending) == [15.0, 17.5, 30.0, 45.0]
    await fleet.due(15.0, becomes=["closed", "listening"])
    await fleet.due(17.5, becomes=["listening", "listening"])
    await fleet.due(30.0, becomes=["hanging", "listening"])
    await fleet.order(other, {"port": one, "state": "listening"})
    assert not fleet.timers.pending


async def test_reopening_port_in_use_returns_409(fleet: Fleet) -> None:
    one, other = fleet.ports
    await fleet.order(other, {"port": one, "state": "closed"})
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", one))
        thief.listen()
        answer = await fleet.order(other, {"port": one, "state": "listening"})
        assert (answer.status_code, "in use" in answer.text) == (409, True)
    await fleet.order(other, {"port": one, "state": "listening"})
    assert await fleet.states(one) == ["listening", "listening"]


@pytest.mark.parametrize(
    ("order", "param"),
    [
        ([{"state": "closed"}, {"port": "other", "state": "hanging"}], "seconds"),
        ({"state": "closed", "port": 1}, "port"),
        ([{"state": "closed", "after": 1}, {"state": "hanging", "after": 1}], "after"),
        ({"state": "shut"}, None),
        ({"state": "listening", "seconds": 3}, None),
    ],
)
async def test_invalid_port_command_returns_400_without_change(
    fleet: Fleet, order: Any, param: str | None
) -> None:
    one, other = fleet.ports
    body = json.loads(json.dumps(order).replace('"other"', str(other)))
    answer = await fleet.order(one, body)
    assert (answer.status_code, answer.json()["error"].get("param")) == (400, param)
    assert await fleet.states(one) == ["listening", "listening"]


def test_plan_changes_ends_command_when_next_begins() -> None:
    orders = [PortCommand("hanging", after=8), PortCommand("closed", after=5, seconds=10)]
    assert [(at, order.state) for at, order in plan_changes(orders)] == [
        (0, "listening"),
        (5, "closed"),
        (8, "hanging"),
    ]
    with pytest.raises(RequestError):
        plan_changes([PortCommand("closed"), PortCommand("hanging")])
