"""Several simulated servers in one process: what each is told, and one application for all of them.

Each is a whole server on a port of its own: engine, metrics, events, faults, adapters and stored answers are its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
from starlette.types import Receive, Scope, Send

from ..engines.simulator.kv_channel import read_config as read_kv_transfer
from ..engines.simulator.kv_publisher import for_rank
from ..engines.simulator.kv_publisher import read_config as read_kv_events
from ..serving.app import Application
from ..serving.lifespan import live_by
from ..settings import Instance, Instances, Settings


def spread(settings: Settings) -> list[Settings]:
    """The settings of each server. Ports and files that an instance does not name for itself count up.

    Raises ValueError.
    """
    shared = msgspec.structs.replace(
        settings, instances=Instances(), store="memory" if settings.store == "sqlite" else settings.store
    )
    out: list[Settings] = []
    ranks = 0
    for number, instance in enumerate(settings.instances.each):
        one = _numbered(shared, instance, number, ranks)
        if one.port >= 1 << 16:
            raise ValueError(f"{number + 1}: there is no port {one.port}")
        ranks += one.data_parallel_size
        out.append(one)
    return out


def _numbered(shared: Settings, instance: Instance, number: int, ranks: int) -> Settings:
    """ranks: how many the instances before it have; each publishes its events on a port of its own."""
    told = dict(instance.told)
    one = msgspec.structs.replace(shared, **told)
    events, transfer = one.kv_events_config, one.kv_transfer_config
    return msgspec.structs.replace(
        one,
        port=one.port if "port" in told or not shared.port else shared.port + number,
        request_log=one.request_log and f"{one.request_log}.{number}",
        kv_events_config=events and _events(events, ranks, own="kv_events_config" in told),
        kv_transfer_config=transfer and _transfer(transfer, number, own="kv_transfer_config" in told),
    )


def _events(text: str, ranks: int, *, own: bool) -> str:
    """own: it was told to this instance alone, so that an endpoint in it is meant as it stands."""
    config = read_kv_events(text)
    if own and "endpoint" in msgspec.json.decode(text, type=dict[str, msgspec.Raw]):
        return text
    replay = None if config.replay_endpoint is None else for_rank(config.replay_endpoint, ranks)
    moved = msgspec.structs.replace(config, endpoint=for_rank(config.endpoint, ranks), replay_endpoint=replay)
    return msgspec.json.encode(moved).decode()


def _transfer(text: str, number: int, *, own: bool) -> str:
    config = read_kv_transfer(text)
    named = msgspec.json.decode(text, type=dict[str, msgspec.Raw]) if own else {}
    port = config.kv_port if "kv_port" in named or not config.kv_port else config.kv_port + number
    name = config.engine_id if "engine_id" in named or not config.engine_id else f"{config.engine_id}-{number}"
    return msgspec.json.encode(msgspec.structs.replace(config, kv_port=port, engine_id=name)).decode()


class ByPort:
    """The application of the port that was asked. They begin and end together."""

    def __init__(self, applications: Mapping[int | None, Application]) -> None:
        self._applications = applications

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live_by(self.alive(), receive, send)
        else:
            await self._applications[scope["server"][1]](scope, receive, send)

    @asynccontextmanager
    async def alive(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for application in self._applications.values():
                await stack.enter_async_context(application.alive())
            yield
