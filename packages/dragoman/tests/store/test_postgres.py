"""Failures of a database server: it is unavailable, and returns."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import pytest

from dragoman.store import Key, Put, StoreUnavailable
from dragoman.store.postgres import PostgresStore

from .backends import put


async def open_store(dsn: str) -> PostgresStore:
    store = PostgresStore(dsn)
    await store.open()
    return store


async def run_sql(dsn: str, statement: str) -> None:
    driver: Any = asyncpg
    connection = await driver.connect(dsn)
    await connection.execute(statement)
    await connection.close()


async def test_postgres_unreachable_error_hides_address():
    with pytest.raises(StoreUnavailable) as caught:
        await open_store("postgresql://somebody:secret@127.0.0.1:1/nothing")
    assert "secret" not in caught.value.message
    assert "127.0.0.1" not in caught.value.message


async def test_postgres_newer_schema_version_rejected(postgres: str):
    await (await open_store(postgres)).close()
    await run_sql(postgres, "UPDATE dragoman_schema SET version = 99")
    with pytest.raises(StoreUnavailable, match="newer version"):
        await open_store(postgres)


async def test_postgres_lost_connection_fails_once_then_recovers(postgres: str):
    store = await open_store(postgres)
    await put(store, "a")
    ours = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND usename = 'dragoman'"
    )
    await run_sql(postgres, ours)
    lost = 0
    for id in "bcdefghi":
        try:
            await store.commit(Put(Key("me", "response", id), 0, b""))
        except StoreUnavailable:
            lost += 1
    assert lost <= 1
    await store.close()


async def test_postgres_stale_run_lock_does_not_block_clean(
    postgres: str,
):
    one, two = await open_store(postgres), await open_store(postgres)
    await put(one, "a", run=one.run)
    lost: Any = one._lock_connection  # pyright: ignore[reportPrivateUsage]
    one._lock_connection = None  # pyright: ignore[reportPrivateUsage]
    async with asyncio.timeout(60):
        await one.clean()
    assert await two.list_abandoned("response") == ()
    await lost.close()
    await one.clean()
    assert await two.list_abandoned("response") == ()
    await one.close()
    await two.close()


async def test_postgres_run_lock_reacquired_after_lost_connection(postgres: str):
    one, two = await open_store(postgres), await open_store(postgres)
    await put(one, "a", run=one.run)
    alive: Any = one._lock_connection  # pyright: ignore[reportPrivateUsage]
    await alive.close()
    assert len(await two.list_abandoned("response")) == 1
    await one.clean()
    assert await two.list_abandoned("response") == ()
    await one.close()
    await two.close()
