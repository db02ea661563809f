"""`--limits-store`: what it accepts, and two server processes that share a limit."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from dragoman.launch.limits_store import build_limits_store, check_limits_store
from dragoman.settings import Settings, SettingsError
from dragoman.tenants import KeyHash, Tenant, edit_key_file, hash_key
from dragoman.tenants.limits_store import LimitsStore
from dragoman.tenants.sqlite_limits import SqliteLimits

from .test_process import server, stop

KEY = "k" * 40


def build(
    folder: Path, limits_store: str = "auto", store: str = "sqlite", keys: str | None = "keys"
) -> object:
    settings = Settings(limits_store=limits_store, store=store, keys_file=keys)
    return build_limits_store(settings, {"XDG_STATE_HOME": str(folder)})


def test_limits_store_defaults_to_file_beside_store(tmp_path: Path) -> None:
    assert isinstance(build(tmp_path), SqliteLimits)
    store = build(tmp_path, "store", f"sqlite:{tmp_path / 'x.db'}")
    assert isinstance(store, SqliteLimits)
    asyncio.run(check_limits_store(store))
    assert [path.name for path in tmp_path.iterdir()] == ["x.db-limits"]
    assert (tmp_path / "x.db-limits").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("limits_store", "store"), [("auto", "memory"), ("auto", "none"), ("memory", "sqlite")]
)
def test_limits_store_without_database_is_none(
    tmp_path: Path, limits_store: str, store: str
) -> None:
    assert build(tmp_path, limits_store, store) is None


def test_limits_store_without_keys_is_none(tmp_path: Path) -> None:
    assert build(tmp_path, keys=None) is None


@pytest.mark.parametrize(
    "value", ["", "yes", "sqlite", "sqlite:", "redis:x", "postgresql:x", "memory:x", "http://x"]
)
def test_limits_store_invalid_value_raises_settings_error(tmp_path: Path, value: str) -> None:
    with pytest.raises(SettingsError, match="limits-store: must be `auto`"):
        build(tmp_path, value)


def test_limits_store_in_memory_store_raises_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="`store` needs `--store sqlite`"):
        build(tmp_path, "store", "memory")


@pytest.mark.parametrize(
    ("address", "driver"),
    [
        ("postgresql://a:secret@127.0.0.1:1/x", "asyncpg"),
        ("redis://:secret@127.0.0.1:1/0", "redis"),
    ],
)
def test_limits_store_unreachable_database_error_hides_password(
    tmp_path: Path, address: str, driver: str
) -> None:
    if importlib.util.find_spec(driver) is None:
        with pytest.raises(SettingsError, match=r"limits-store: \w+ needs `pip install"):
            build(tmp_path, address)
        return
    store = build(tmp_path, address)
    with pytest.raises(
        SettingsError, match=r"limits-store: .*counts in each process instead"
    ) as caught:
        asyncio.run(check_limits_store(as_store(store)))
    assert "secret" not in str(caught.value)


def as_store(store: object) -> LimitsStore:
    assert store is not None
    return store  # pyright: ignore[reportReturnType]


def test_limits_store_unopenable_file_raises_settings_error(tmp_path: Path) -> None:
    store = build(tmp_path, f"sqlite:{tmp_path}")
    with pytest.raises(SettingsError, match=r"limits-store: The file .* cannot be opened"):
        asyncio.run(check_limits_store(as_store(store)))


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_two_servers_with_one_store_share_limit(tmp_path: Path) -> None:
    tenant = Tenant(secrets=(KeyHash(hash_key(KEY)),), concurrent_requests=1, tokens_per_month=1)
    edit_key_file(tmp_path / "keys.yaml", lambda tenants: tenants.update({"team-a": tenant}))
    arguments = ("--keys-file", "keys.yaml", "--store", "sqlite:store.db")
    with ExitStack() as stack:
        (first, first_url), (_, second_url) = [
            stack.enter_context(server(tmp_path, *arguments)) for _ in range(2)
        ]
        assert ask(first_url) == 200
        # Usage is written in the background; a server that has stopped has written
        # everything.
        assert stop(first)[0] == 0
        assert ask(second_url) == 429
    assert (tmp_path / "store.db-limits").exists()


def ask(url: str) -> int:
    body = b'{"messages": [{"role": "user", "content": "Hello."}]}'
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    try:
        with urlopen(Request(f"{url}/v1/chat/completions", body, headers), timeout=60) as response:
            return response.status
    except HTTPError as error:
        error.close()
        return error.code
