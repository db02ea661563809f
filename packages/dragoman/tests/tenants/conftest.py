"""Every available store of limits; missing ones are reported."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.store.conftest import postgres, postgres_server

from dragoman.tenants.apply_batch import Holder, KeyState
from dragoman.tenants.sqlite_limits import SqliteLimits

from .backends import (
    NO_REDIS_CLIENT,
    NO_REDIS_SERVER,
    MemoryLimits,
    SharedStorage,
    find_redis_server,
    redis_server,
)

__all__ = ["postgres", "postgres_server"]


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    program = find_redis_server()
    if program is None:
        pytest.skip(NO_REDIS_SERVER)
    if importlib.util.find_spec("redis") is None:
        pytest.skip(NO_REDIS_CLIENT)
    with redis_server(program) as url:
        yield url


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> SharedStorage:
    numbers = count()
    current = [next(numbers)]

    def reset() -> None:
        current[0] = next(numbers)

    match request.param:
        case "memory":
            states: dict[int, tuple[dict[str, KeyState], dict[str, Holder]]] = {}
            return SharedStorage(
                lambda clock: MemoryLimits(clock, *states.setdefault(current[0], ({}, {}))), reset
            )
        case "sqlite":
            return SharedStorage(
                lambda clock: SqliteLimits(tmp_path / f"{current[0]}.db", clock.unix), reset
            )
        case "postgres":
            dsn: str = request.getfixturevalue("postgres")
            return _build_postgres_storage(dsn)
        case _:
            from dragoman.tenants.redis_limits import RedisLimits

            url: str = request.getfixturevalue("redis_url")
            name = f"{request.node.name}-{tmp_path.name}"
            return SharedStorage(
                lambda clock: RedisLimits(url, clock.unix, prefix=f"{{{name}-{current[0]}}}"), reset
            )


def _build_postgres_storage(dsn: str) -> SharedStorage:
    import asyncio

    import asyncpg  # pyright: ignore[reportMissingTypeStubs]

    from dragoman.tenants.postgres_limits import PostgresLimits

    async def empty() -> None:
        connection = await asyncpg.connect(dsn)  # pyright: ignore
        for table in ("keys", "holders"):
            await connection.execute(f"DELETE FROM dragoman_limit_{table}_2")  # pyright: ignore
        await connection.close()  # pyright: ignore

    async def create() -> None:
        store = PostgresLimits(dsn)
        await store.open()
        await store.close()

    asyncio.run(create())
    return SharedStorage(
        lambda clock: PostgresLimits(dsn, clock.unix), lambda: asyncio.run(empty())
    )
