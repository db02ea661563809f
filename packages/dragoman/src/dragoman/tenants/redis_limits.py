"""Shared limits in Redis or Valkey, for servers on several machines. Needs the extra
`redis`.

A script does the same as `apply_batch.apply_batch`, so a batch takes one round trip.
Lua's numbers are exact up to 2**53, so a counter is stored as whole units and a
remainder below the period. All keys are in the same slot of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import redis.asyncio  # pyright: ignore[reportMissingImports]
from redis.asyncio.retry import Retry  # pyright: ignore
from redis.backoff import NoBackoff  # pyright: ignore
from redis.exceptions import RedisError  # pyright: ignore

from .counters import MAX_CLOCK_STEP
from .limits_store import (
    HOLDER_RETENTION,
    TIMEOUT,
    Batch,
    BatchResult,
    BatchStatus,
    LimitsStoreUnavailable,
    OperationOutcome,
)

# In braces: the hash tag, since a script may only access keys of one slot (Redis
# Cluster specification).
PREFIX = "dragoman:{limits}"
RETENTION = 7 * 86400
"""Minimum seconds for which the counters of an unused key are stored."""
_redis: Any = redis.asyncio  # pyright: ignore
_retry: Any = Retry
_no_backoff: Any = NoBackoff
"""The client is an optional dependency; untyped values do not leave this module."""
_FAILURES: Any = (RedisError, OSError, TimeoutError)

_SCRIPT = f"""
local now, step, retention = tonumber(ARGV[2]), {MAX_CLOCK_STEP}, {HOLDER_RETENTION}
if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
local batch = cjson.decode(ARGV[1])
local function render(number) return string.format('%.0f', number) end

local holders, stored = {{}}, redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do
    local expires, seq = string.match(stored[i + 1], '(%d+) (%d+)')
    holders[stored[i]] = {{expires = tonumber(expires), seq = tonumber(seq)}}
end
local function put_holder(id, expires, seq)
    holders[id] = {{expires = expires, seq = seq}}
    redis.call('HSET', KEYS[1], id, render(expires) .. ' ' .. render(seq))
end

local own = holders[batch.holder]
if own and own.seq >= batch.seq then return {{'repeated'}} end
if batch.seq > 1 and (not own or own.expires <= now) then return {{'expired'}} end
local redo = batch.redo
if type(batch.previous) == 'table' then
    local former, seq = batch.previous[1], batch.previous[2]
    if holders[former] and holders[former].seq >= seq then redo = {{}} end
    put_holder(former, now, seq)
end
put_holder(batch.holder, now + batch.lease, batch.seq)
for id, holder in pairs(holders) do
    if holder.expires <= now - retention then redis.call('HDEL', KEYS[1], id) end
end
local function is_live(id) return holders[id] and holders[id].expires > now end

local states = {{}}
for i = 2, #KEYS do
    local state = {{counters = {{}}, places = {{}}, ttl = {RETENTION * 1000}}}
    local fields = redis.call('HGETALL', KEYS[i])
    for j = 1, #fields, 2 do
        local kind, name = string.sub(fields[j], 1, 2), string.sub(fields[j], 3)
        if kind == 'p:' then
            if is_live(name) then state.places[name] = tonumber(fields[j + 1]) end
        else
            local units, rest, updated, ends = string.match(fields[j + 1], '(%d+) (%d+) (%d+) (%d+)')
            state.counters[name] = {{
                units = tonumber(units), rest = tonumber(rest), updated = tonumber(updated), ends = tonumber(ends)
            }}
        end
    end
    states[ARGV[i + 1]] = state
end

local function advance(counter, demand)
    local ends = demand['until']
    if ends > 0 then
        if ends > counter.ends then counter.units, counter.ends = 0, ends end
        if ends == counter.ends and demand.floor > counter.units then counter.units = demand.floor end
        return
    end
    local period = demand.period
    if period > 0 and now > counter.updated then
        -- elapsed * limit / period in whole units and a rest, without a product above 2^53.
        local elapsed = now - counter.updated
        local limit_rest, elapsed_rest = demand.limit % period, elapsed % period
        local limit_whole, elapsed_whole = (demand.limit - limit_rest) / period, (elapsed - elapsed_rest) / period
        local product = elapsed_rest * limit_rest
        local rest = product % period
        counter.units = counter.units - elapsed * limit_whole - elapsed_whole * limit_rest - (product - rest) / period
        counter.rest = counter.rest - rest
        if counter.rest < 0 then counter.rest, counter.units = counter.rest + period, counter.units - 1 end
        if counter.units < 0 then counter.units, counter.rest = 0, 0 end
    end
    if now > counter.updated or now < counter.updated - step then counter.updated = now end
end

local function apply(operation)
    local state, counters, is_taken = states[operation.key], {{}}, true
    for i, demand in ipairs(operation.demands) do
        local counter
        if demand.period == 0 and demand['until'] == 0 then
            counter = {{units = 0, rest = 0}}
            for _, places in pairs(state.places) do counter.units = counter.units + places end
        else
            counter = state.counters[demand.counter] or {{units = 0, rest = 0, updated = now, ends = 0}}
            state.counters[demand.counter] = counter
            advance(counter, demand)
        end
        local needed = demand.needed
        if demand.period > 0 then needed = math.min(needed, demand.limit) end
        local free = demand.limit - counter.units - needed
        is_taken = is_taken and (free > 0 or (free == 0 and counter.rest == 0))
        counters[i] = counter
    end
    is_taken = is_taken or operation.is_forced
    local outcome = {{is_taken and 1 or 0}}
    for i, demand in ipairs(operation.demands) do
        local counter = counters[i]
        if is_taken then
            counter.units = counter.units + demand.amount
            if counter.units < 0 then counter.units, counter.rest = 0, 0 end
            if demand.period == 0 and demand['until'] == 0 then
                state.places[batch.holder] = math.max(0, (state.places[batch.holder] or 0) + demand.amount)
            else
                local full = demand['until'] - now
                if demand.period > 0 then full = (counter.units + 1) * demand.period / demand.limit end
                state.ttl = math.max(state.ttl, math.ceil(full / 1000))
            end
        end
        outcome[#outcome + 1] = counter.units
        outcome[#outcome + 1] = counter.rest
    end
    return outcome
end

for key, places in pairs(batch.places) do states[key].places[batch.holder] = places end
for _, operation in ipairs(redo) do apply(operation) end
local result = {{'applied'}}
for i, operation in ipairs(batch.operations) do result[i + 1] = apply(operation) end

for i = 2, #KEYS do
    local state, fields = states[ARGV[i + 1]], {{}}
    for name, counter in pairs(state.counters) do
        fields[#fields + 1] = 'c:' .. name
        fields[#fields + 1] = render(counter.units) .. ' ' .. render(counter.rest) .. ' ' .. render(counter.updated)
            .. ' ' .. render(counter.ends)
    end
    for holder, places in pairs(state.places) do
        if places > 0 then
            fields[#fields + 1] = 'p:' .. holder
            fields[#fields + 1] = render(places)
        end
    end
    local ttl = math.max(state.ttl, redis.call('PTTL', KEYS[i]))
    redis.call('DEL', KEYS[i])
    if #fields > 0 then
        redis.call('HSET', KEYS[i], unpack(fields))
        redis.call('PEXPIRE', KEYS[i], render(ttl))
    end
end
return result
"""


class RedisLimits:
    """A `LimitsStore` in Redis.

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
        # No retries by the client: a repeated batch would return `repeated`.
        # `SharedCounters` handles failures itself.
        retry = _retry(_no_backoff(), 0)
        self._client: Any = _redis.Redis.from_url(
            url,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            retry=retry,
            max_connections=2,
        )
        self._script: Any = self._client.register_script(_SCRIPT)

    async def open(self) -> None:
        try:
            await self._client.ping()
        except _FAILURES as error:
            await self.close()
            raise LimitsStoreUnavailable(f"Redis: {error}") from error

    async def close(self) -> None:
        try:
            await self._client.aclose()
        except _FAILURES:
            # The connection is already closed.
            return

    async def apply(self, batch: Batch) -> BatchResult:
        names = batch.list_keys()
        keys = [f"{self._prefix}:holders", *(f"{self._prefix}:key:{name}" for name in names)]
        # If empty, the script uses the time of Redis, so that servers with different
        # clocks agree.
        now = "" if self._now is None else str(self._now())
        try:
            status, *outcomes = await self._script(
                keys=keys, args=[msgspec.json.encode(batch), now, *names]
            )
        except _FAILURES as error:
            raise LimitsStoreUnavailable(f"Redis: {error}") from error
        results: list[OperationOutcome] = []
        # An outcome is 1 if the units were taken, else 0; followed by the units and the
        # remainder of each counter.
        for operation, (is_met, *numbers) in zip(batch.operations, outcomes, strict=False):
            counters = zip(operation.demands, numbers[::2], numbers[1::2], strict=True)
            used = tuple(units * demand.scale + rest for demand, units, rest in counters)
            results.append(OperationOutcome(bool(is_met), used))
        return BatchResult(BatchStatus(status.decode()), tuple(results))
