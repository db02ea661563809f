"""Checks that heavy load does not exhaust the server."""

from __future__ import annotations

import gzip

from ..check_catalog import Area
from ..dialects import CHAT
from ..rules.json_values import require
from ..session import Session
from .http import find_path

HEAVY = Area("load", claims=("chat",), source="https://cwe.mitre.org/data/definitions/400.html")


@HEAVY.check("A gzip request body that decompresses to 100 MB is rejected.", is_destructive=True)
async def bomb(s: Session) -> None:
    body = gzip.compress(b'{"a":"' + b"x" * 100_000_000 + b'"}')
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    exchange = await s.post(CHAT.path, None, raw=body, headers=headers)
    require(400 <= exchange.status < 500, f"status {exchange.status}")


@HEAVY.check("A request body of 64 MB does not cause a 5xx status.", is_destructive=True)
async def large_body(s: Session) -> None:
    exchange = await s.post(CHAT.path, CHAT.build_request(s.model, "x" * 64_000_000, 8))
    require(exchange.status < 500, f"status {exchange.status}")


@HEAVY.check(
    "A JSON Schema with a very large automaton does not cause a 5xx status, and the "
    "server still responds afterwards.",
    is_destructive=True,
)
async def heavy_schema(s: Session) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "multipleOf": 9999991}},
        "required": ["a"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    exchange = await s.post(CHAT.path, CHAT.build_request(s.model, "Hi", 16, response_format=form))
    require(exchange.status < 500, f"status {exchange.status}")
    require((await s.get(await find_path(s))).status == 200, "the server does not respond any more")


@HEAVY.check(
    "64 concurrent streams complete, or are rejected with 429 or 503.", is_destructive=True
)
async def many_streams(s: Session) -> None:
    import asyncio  # noqa: PLC0415

    body = CHAT.build_stream_request(s.model, "Name a colour.", 8)
    exchanges = await asyncio.gather(*(s.post(CHAT.path, body) for _ in range(64)))
    statuses = {exchange.status for exchange in exchanges}
    require(statuses <= {200, 429, 503}, f"the statuses are {sorted(statuses)}")
    incomplete = [
        exchange
        for exchange in exchanges
        if exchange.status == 200 and not CHAT.fold(exchange.body).reason
    ]
    require(not incomplete, f"{len(incomplete)} streams have no finish reason")
