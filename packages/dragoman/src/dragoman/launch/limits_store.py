"""Builds the store of the keys' limits from the settings."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..settings import Settings, SettingsError
from ..tenants import Counters
from ..tenants.limits_store import LimitsStore, LimitsStoreUnavailable
from ..tenants.shared_counters import SharedCounters
from ..tenants.sqlite_limits import SqliteLimits
from .store_builder import find_store_file

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
                    "limits-store: PostgreSQL needs `pip install 'dragoman[postgres]'`."
                ) from error
            built = PostgresLimits(store)
        case _ if kind in REDIS_SCHEMES and rest.startswith("//"):
            try:
                from ..tenants.redis_limits import RedisLimits  # noqa: PLC0415 - needs an optional dependency
            except ImportError as error:
                raise SettingsError(
                    "limits-store: Redis needs `pip install 'dragoman[redis]'`."
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
