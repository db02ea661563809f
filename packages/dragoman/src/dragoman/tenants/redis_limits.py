"""Shared limits in Redis or Valkey, for servers on several machines. Needs the extra
`redis`.

A batch is an optimistic transaction: `WATCH` and the reads in one round trip, `MULTI`,
the writes and `EXEC` in another (https://redis.io/docs/latest/develop/using-commands/transactions).
If another process changed a watched key in between, the batch is computed again. All
keys are in the same slot of a cluster.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis.asyncio  # pyright: ignore[reportMissingImports]
from redis.asyncio.retry import Retry  # pyright: ignore
from redis.backoff import NoBackoff  # pyright: ignore
from redis.exceptions import RedisError, ResponseError  # pyright: ignore

from .apply_batch import Holder, KeyState, apply_batch, decode_states, encode_state
from .limits_store import (
    HOLDER_RETENTION,
    STATE_RETENTION,
    TIMEOUT,
    Batch,
    BatchResult,
    BatchStatus,
    LimitsStoreUnavailable,
)

# In braces: the hash tag, since a transaction may only use keys of one slot (Redis
# Cluster specification).
PREFIX = "dragoman:{limits}"
MAX_PAUSE = 0.02
"""Seconds before a batch is computed again, at most: doubled from 1 ms for each
conflict, times a random factor, so that processes do not meet again.
"""
_redis: Any = redis.asyncio  # pyright: ignore
_retry: Any = Retry
_no_backoff: Any = NoBackoff
"""The client is an optional dependency; untyped values do not leave this module."""
_ERROR_REPLY: Any = ResponseError
_FAILURES: Any = (RedisError, OSError, TimeoutError)


class RedisLimits:
    """A `LimitsStore` in Redis. It needs only one connection, since a process sends one
    batch at a time.

    url: `redis://`, `rediss://` or `unix://`, or the same with `valkey` instead of
        `redis`.
    now: returns microseconds of Unix time; None for the clock of Redis, which all
        servers share.
    prefix: prefix of all Redis keys.
    """

    def __init__(
        self, url: str, now: Callable[[], int] | None = None, *, prefix: str = PREFIX
    ) -> None:
        self._now = now
        self._prefix = prefix
        url = url.replace("valkey", "redis", 1) if url.startswith("valkey") else url
        # No retries by the client: it would send half a transaction on a new connection.
        self._pool: Any = _redis.ConnectionPool.from_url(
            url,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            retry=_retry(_no_backoff(), 0),
        )
        self._connection: Any = None

    async def open(self) -> None:
        try:
            await self._send([("PING",)])
        except _FAILURES as error:
            await self.close()
            raise LimitsStoreUnavailable(f"Redis: {error}") from error

    async def close(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def apply(self, batch: Batch) -> BatchResult:
        deadline = time.monotonic() + TIMEOUT
        pause = 0.001
        try:
            while (result := await self._try_apply(batch)) is None:
                if time.monotonic() >= deadline:
                    raise LimitsStoreUnavailable(
                        f"Redis: other processes changed the same keys for {TIMEOUT:.0f} s"
                    )
                await asyncio.sleep(random.uniform(0, pause))
                pause = min(2 * pause, MAX_PAUSE)
        except _FAILURES as error:
            await self.close()
            raise LimitsStoreUnavailable(f"Redis: {error}") from error
        except BaseException:
            # After a cancellation the connection may still receive replies, which no
            # later batch must read; a closed one also forgets what it watched.
            await self.close()
            raise
        return result

    async def _try_apply(self, batch: Batch) -> BatchResult | None:
        """Return None if another process changed a watched key."""
        keys = batch.list_keys()
        holder_ids = batch.list_holders()
        names = [*map(self._name_key, keys), *map(self._name_holder, holder_ids)]
        _, (seconds, microseconds), values = await self._send(
            [("WATCH", *names), ("TIME",), ("MGET", *names)]
        )
        # The time of Redis, so that servers with different clocks agree.
        now = int(seconds) * 1_000_000 + int(microseconds) if self._now is None else self._now()
        rows = {key: row for key, row in zip(keys, values, strict=False) if row is not None}
        states = decode_states(keys, rows)
        holders = _decode_holders(holder_ids, values[len(keys) :])
        await self._read_other_holders(states, holders)
        result = apply_batch(batch, now, states, holders)
        if result.status is not BatchStatus.APPLIED:
            await self._send([("UNWATCH",)])
            return result
        writes = [
            ("SET", self._name_key(key), encode_state(state), "PX", STATE_RETENTION // 1000)
            for key, state in states.items()
        ]
        for id in holder_ids:
            holder = holders[id]
            ttl = (holder.expires - now + HOLDER_RETENTION) // 1000
            writes.append(
                ("SET", self._name_holder(id), f"{holder.expires} {holder.seq}", "PX", ttl)
            )
        replies = await self._send([("MULTI",), *writes, ("EXEC",)])
        return None if replies[-1] is None else result

    async def _read_other_holders(
        self, states: dict[str, KeyState], holders: dict[str, Holder]
    ) -> None:
        """Add the holders of places. They are not watched: they change with every batch
        of their process, and only the end of a lease is read.
        """
        ids = sorted({id for state in states.values() for id in state.places} - holders.keys())
        if ids:
            (values,) = await self._send([("MGET", *map(self._name_holder, ids))])
            holders |= _decode_holders(ids, values)

    async def _send(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        """Send the commands in one round trip and return their replies. The first error
        is raised when all replies have been read.
        """
        if self._connection is None:
            connection = self._pool.make_connection()
            await connection.connect()
            self._connection = connection
        connection = self._connection
        await connection.send_packed_command(connection.pack_commands(commands))
        replies: list[Any] = []
        failure: Exception | None = None
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except _ERROR_REPLY as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return replies

    def _name_key(self, key: str) -> str:
        return f"{self._prefix}:key:{key}"

    def _name_holder(self, id: str) -> str:
        return f"{self._prefix}:holder:{id}"


def _decode_holders(ids: Sequence[str], values: Sequence[bytes | None]) -> dict[str, Holder]:
    return {
        id: Holder(*map(int, value.split()))
        for id, value in zip(ids, values, strict=True)
        if value is not None
    }
