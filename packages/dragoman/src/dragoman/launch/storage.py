"""Builds the persistent state from the settings: the store, the store of the keys'
limits, and the secret key.

The secret key encrypts and signs reasoning. It is configured, or else generated and
stored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from ..settings import Settings, SettingsError, load_or_create_key, state_directory
from ..store import Bounds, MemoryStore, SqliteStore, Store, StoreUnavailable
from ..tenants import Counters
from ..tenants.shared import LimitsStore, LimitsStoreUnavailable, SharedCounters
from ..tenants.sqlite_limits import SqliteLimits
from .plugin import STORES, load_entry_point


def build_store(settings: Settings, environment: Mapping[str, str]) -> Store | None:
    """Build the store without opening it; None if storage is disabled.

    Raises:
        SettingsError: the setting is invalid or a driver is missing.
    """
    bounds = Bounds(settings.store_max_records, settings.store_max_bytes, settings.store_ttl)
    kind, _, rest = settings.store.partition(":")
    match kind, rest:
        case "none", "":
            return None
        case "memory", "":
            return MemoryStore(bounds)
        case "sqlite", path:
            synchronous = "FULL" if settings.store_synchronous == "full" else "NORMAL"
            return SqliteStore(find_store_file(path, environment), bounds, synchronous=synchronous)
        case "postgresql" | "postgres", rest if rest.startswith("//"):
            try:
                from ..store.postgres import PostgresStore  # noqa: PLC0415 - needs asyncpg, an optional dependency
            except ImportError as error:
                raise SettingsError(
                    "store: PostgreSQL needs `pip install '.[postgres]'` in the clone of Dragoman."
                ) from error
            return PostgresStore(settings.store, bounds)
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


async def check_store(store: Store) -> None:
    """Open and close the store, so that errors are reported at startup.

    Raises:
        SettingsError: the store cannot be opened.
    """
    try:
        await store.open()
    except StoreUnavailable as error:
        raise SettingsError(
            f"store: {error.message} `--store memory` and `--store none` work without a file."
        ) from error
    await store.close()


# The limits of keys.

SUFFIX = "-limits"
"""Suffix of the file next to the store's file. A separate file, since commits to the
store wait for the disk.
"""
VALUES = "`auto`, `memory`, `store`, `sqlite:PATH`, `postgresql://...` or `redis://...`"
REDIS_SCHEMES = frozenset({"redis", "rediss", "unix", "valkey", "valkeys"})


def build_limits_store(settings: Settings, environment: Mapping[str, str]) -> LimitsStore | None:
    """Build the store of the limits without opening it; None if each process counts for
    itself.

    Raises:
        SettingsError: the setting is invalid or a driver is missing.
    """
    store = settings.limits_store
    is_own = True
    if store in ("auto", "store"):
        kind = settings.store.partition(":")[0]
        if kind in ("sqlite", "postgresql", "postgres"):
            store = settings.store
            is_own = False
        elif store == "store":
            raise SettingsError(
                f"limits-store: `store` needs `--store sqlite` or `postgresql://...`, and the "
                f"store is `{kind}`."
            )
        else:
            store = "memory"
    kind, _, rest = store.partition(":")
    match kind:
        case "memory" if not rest:
            built = None
        case "sqlite" if rest or not is_own:
            file = find_store_file(rest, environment)
            built = SqliteLimits(file if is_own else file.with_name(file.name + SUFFIX))
        case "postgresql" | "postgres" if rest.startswith("//"):
            try:
                from ..tenants.postgres_limits import PostgresLimits  # noqa: PLC0415 - needs asyncpg
            except ImportError as error:
                raise SettingsError(
                    "limits-store: PostgreSQL needs `pip install '.[postgres]'` in the clone of "
                    "Dragoman."
                ) from error
            built = PostgresLimits(store)
        case _ if kind in REDIS_SCHEMES and rest.startswith("//"):
            try:
                from ..tenants.redis_limits import RedisLimits  # noqa: PLC0415 - needs an optional dependency
            except ImportError as error:
                raise SettingsError(
                    "limits-store: Redis needs `pip install '.[redis]'` in the clone of Dragoman."
                ) from error
            try:
                built = RedisLimits(store)
            except ValueError as error:
                raise SettingsError(f"limits-store: {error}") from error
        case _:
            raise SettingsError(f"limits-store: must be {VALUES}, not `{kind}`.")
    # Only named keys have limits.
    return None if settings.keys_file is None else built


def build_counters(store: LimitsStore | None) -> Counters | None:
    return None if store is None else SharedCounters(store, time.monotonic)


async def check_limits_store(store: LimitsStore) -> None:
    """Open and close the store, so that errors are reported at startup.

    Raises:
        SettingsError: the store cannot be opened.
    """
    try:
        await store.open()
    except LimitsStoreUnavailable as error:
        raise SettingsError(
            f"limits-store: {error.message} `--limits-store memory` counts in each process instead."
        ) from error
    await store.close()


# The secret key.

log = logging.getLogger(__name__)


def load_secret_key(settings: Settings, environment: Mapping[str, str]) -> bytes | None:
    """Return the configured or stored key; None if there is neither, and the caller
    generates an ephemeral one.
    """
    if settings.secret_key is not None:
        return settings.secret_key.encode()
    kind, _, path = settings.store.partition(":")
    # If the store does not outlive the process, the key need not either.
    if kind in ("memory", "none"):
        return None
    file = (
        Path(f"{path}.key")
        if kind == "sqlite" and path
        else state_directory(environment) / "secret.key"
    )
    try:
        return load_or_create_key(file)
    except (OSError, ValueError) as error:
        log.warning("reasoning held by clients will be unreadable after a restart: %s", error)
        return None
