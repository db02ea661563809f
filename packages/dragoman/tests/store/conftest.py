"""Every available backend; a missing PostgreSQL is reported, and is an error if it is
required.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from dragoman.store import MemoryStore, SqliteStore
from dragoman.store.postgres import PostgresStore

from .backends import Storage
from .cluster import MISSING, cluster, programs

_schemas = count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    found = programs()
    if found is None:
        if os.environ.get("DRAGOMAN_TEST_POSTGRES") == "required":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with cluster(found) as dsn:
        yield dsn


@pytest.fixture
def postgres(postgres_server: str) -> str:
    """Yield a DSN with a separate schema for this test."""
    import asyncio

    import asyncpg  # pyright: ignore[reportMissingTypeStubs]

    schema = f"test{next(_schemas)}"

    async def create() -> None:
        connection = await asyncpg.connect(postgres_server)  # pyright: ignore
        await connection.execute(f"CREATE SCHEMA {schema}")  # pyright: ignore
        await connection.close()  # pyright: ignore

    asyncio.run(create())
    return f"{postgres_server}&search_path={schema}"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    match request.param:
        case "memory":
            return Storage(lambda bounds, now: MemoryStore(bounds, now=now), durable=False)
        case "sqlite":
            path = tmp_path / "state" / "dragoman.db"
            # The kit does not simulate power failures, so commits need not wait for the
            # disk.
            return Storage(
                lambda bounds, now: SqliteStore(path, bounds, synchronous="NORMAL", now=now),
                durable=True,
            )
        case _:
            dsn: str = request.getfixturevalue("postgres")
            return Storage(lambda bounds, now: PostgresStore(dsn, bounds, now=now), durable=True)
