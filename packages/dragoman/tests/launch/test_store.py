"""Settings become a store; one that cannot be opened is an error before the server
prints its address.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.launch.storage import build_store, check_store
from dragoman.settings import Settings, SettingsError
from dragoman.store import Key, MemoryStore, Put, SqliteStore
from dragoman.store.postgres import PostgresStore


async def test_by_default_a_file_among_this_users_state(tmp_path: Path):
    store = build_store(Settings(), {"XDG_STATE_HOME": str(tmp_path)})
    assert isinstance(store, SqliteStore)
    await check_store(store)
    assert (tmp_path / "dragoman" / "store.db").stat().st_mode & 0o777 == 0o600


async def test_a_store_that_was_tried_out_can_be_opened(tmp_path: Path):
    store = build_store(Settings(store=f"sqlite:{tmp_path}/x.db"), {})
    assert store is not None
    await check_store(store)
    await store.open()
    await store.commit(Put(Key("", "file", "a"), 0, b""))
    assert await store.get(Key("", "file", "a")) is not None
    await store.close()


def test_other_stores():
    assert build_store(Settings(store="none"), {}) is None
    assert isinstance(build_store(Settings(store="memory"), {}), MemoryStore)
    assert isinstance(build_store(Settings(store="postgresql://localhost/x"), {}), PostgresStore)


@pytest.mark.parametrize("store", ["redis://localhost", "sqlite3", "none:x", "postgresql:x", ""])
def test_the_error_of_an_unknown_store_hides_its_password(store: str):
    with pytest.raises(SettingsError, match="must be `sqlite`"):
        build_store(Settings(store=store), {})


async def test_a_store_that_cannot_be_opened_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    store = build_store(Settings(store=f"sqlite:{tmp_path}/file/x.db"), {})
    assert store is not None
    with pytest.raises(SettingsError, match="cannot be opened"):
        await check_store(store)
