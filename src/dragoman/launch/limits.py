"""Builds where the limits of keys are counted."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..settings import Settings, SettingsError
from ..tenants import Counters
from ..tenants.shared import LimitsStore, LimitsStoreUnavailable, SharedCounters
from ..tenants.sqlite_limits import SqliteLimits
from .store import find_store_file

SUFFIX = "-limits"
"""Of the file beside the store's. Not the same file: there every commit waits for the disk."""
VALUES = "`auto`, `memory`, `store`, `sqlite:PATH`, `postgresql://...` or `redis://...`"
REDIS_SCHEMES = frozenset({"redis", "rediss", "unix", "valkey", "valkeys"})


def build_limits_store(settings: Settings, environment: Mapping[str, str]) -> LimitsStore | None:
    """Build the store of the limits without opening it; None where each process counts for itself.

    Raises:
        SettingsError: the setting is invalid or a driver is missing.
    """
    store, is_own = settings.limits_store, True
    if store in ("auto", "store"):
        kind = settings.store.partition(":")[0]
        if kind in ("sqlite", "postgresql", "postgres"):
            store, is_own = settings.store, False
        elif store == "store":
            raise SettingsError(
                f"limits-store: `store` needs `--store sqlite` or `postgresql://...`, and the store is `{kind}`."
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
                # Imported late: it needs asyncpg, an optional dependency.
                from ..tenants.postgres_limits import PostgresLimits  # noqa: PLC0415
            except ImportError as error:
                raise SettingsError("limits-store: PostgreSQL needs `pip install '.[postgres]'`.") from error
            built = PostgresLimits(store)
        case _ if kind in REDIS_SCHEMES and rest.startswith("//"):
            built = _build_redis(store)
        case _:
            raise SettingsError(f"limits-store: must be {VALUES}, not `{kind}`.")
    # Only named keys have limits.
    return None if settings.keys_file is None else built


def build_counters(store: LimitsStore | None) -> Counters | None:
    return None if store is None else SharedCounters(store, time.monotonic)


def _build_redis(url: str) -> LimitsStore:
    try:
        from ..tenants.redis_limits import RedisLimits  # noqa: PLC0415 - an optional dependency, too
    except ImportError as error:
        raise SettingsError("limits-store: Redis needs `pip install '.[redis]'`.") from error
    try:
        return RedisLimits(url)
    except ValueError as error:
        raise SettingsError(f"limits-store: {error}") from error


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
