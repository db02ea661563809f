"""Builds the store from the settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from dragoman_cli.entry_points import load_entry_point

from ..settings import Settings, SettingsError, state_directory
from ..store import Bounds, MemoryStore, SqliteStore, Store, StoreUnavailable

STORES = "dragoman.stores"
"""The entry point group in which packages register stores."""


def build_store(
    settings: Settings, environment: Mapping[str, str], warning: str | None = None
) -> Store | None:
    """Build the store without opening it; None if storage is disabled.

    warning: see `SqliteStore`.

    Raises:
        SettingsError: the setting is invalid or a driver is missing.
    """
    bounds = Bounds(settings.store_max_records, settings.store_max_bytes, settings.store_ttl)
    kind, _, rest = settings.store.partition(":")
    match kind, rest:
        case "none", "":
            return None
        case "memory", "":
            return MemoryStore(bounds, monotonic=time.monotonic)
        case "sqlite", path:
            synchronous = "FULL" if settings.store_synchronous == "full" else "NORMAL"
            return SqliteStore(
                find_store_file(path, environment),
                bounds,
                synchronous=synchronous,
                monotonic=time.monotonic,
                warning=warning,
            )
        case "postgresql" | "postgres", rest if rest.startswith("//"):
            try:
                from ..store.postgres import PostgresStore  # noqa: PLC0415 - needs asyncpg, an optional dependency
            except ImportError as error:
                raise SettingsError(
                    "store: PostgreSQL needs `pip install 'dragoman[postgres]'`."
                ) from error
            return PostgresStore(settings.store, bounds, monotonic=time.monotonic)
        case _ if (factory := load_entry_point(STORES, kind)) is not None:
            return factory(rest, bounds)
        case _:
            raise SettingsError(
                f"store: must be `sqlite`, `sqlite:PATH`, `postgresql://...`, `memory` or `none`, "
                f"not `{kind}`."
            )


def find_store_file(path: str, environment: Mapping[str, str]) -> Path:
    """Return the file of a SQLite store.

    path: PATH of `sqlite:PATH`; if empty, the file is in the state directory.
    """
    return Path(path) if path else state_directory(environment) / "store.db"


async def check_store(store: Store) -> str | None:
    """Open and close the store, so that errors are reported at startup, and return the
    warning of its health check.

    Raises:
        SettingsError: the store cannot be opened.
    """
    try:
        await store.open()
    except StoreUnavailable as error:
        raise SettingsError(
            f"store: {error.message} `--store memory` and `--store none` work without a file."
        ) from error
    health = await store.check_health()
    await store.close()
    return health.warning
