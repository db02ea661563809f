"""Settings become a store; one that cannot be opened is an error before the server
prints its address.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.launch.store_builder import build_store, check_store
from dragoman.settings import Settings, SettingsError
from dragoman.store import Key, MemoryStore, Put, SqliteStore
from dragoman.store.postgres import PostgresStore


async def test_store_defaults_to_file_in_user_state_directory(tmp_path: Path):
    store = build_store(Settings(), {"XDG_STATE_HOME": str(tmp_path)})
    assert isinstance(store, SqliteStore)
    await check_store(store)
    assert (tmp_path / "dragoman" / "store.db").stat().st_mode & 0o777 == 0o600


async def test_store_can_be_opened_after_check(tmp_path: Path):
    store = build_store(Settings(store=f"sqlite:{tmp_path}/x.db"), {})
    assert store is not None
    await check_store(store)
    await store.open()
    await store.commit(Put(Key("", "file", "a"), 0, b""))
    assert await store.get(Key("", "file", "a")) is not None
    await store.close()


def test_build_store_supports_none_memory_and_postgresql():
    assert build_store(Settings(store="none"), {}) is None
    assert isinstance(build_store(Settings(store="memory"), {}), MemoryStore)
    assert isinstance(build_store(Settings(store="postgresql://localhost/x"), {}), PostgresStore)


@pytest.mark.parametrize("store", ["redis://localhost", "sqlite3", "none:x", "postgresql:x", ""])
def test_unknown_store_error_hides_password(store: str):
    with pytest.raises(SettingsError, match="must be `sqlite`"):
        build_store(Settings(store=store), {})


async def test_unopenable_store_raises_settings_error(tmp_path: Path):
    (tmp_path / "file").touch()
    store = build_store(Settings(store=f"sqlite:{tmp_path}/file/x.db"), {})
    assert store is not None
    with pytest.raises(SettingsError, match="cannot be opened"):
        await check_store(store)
