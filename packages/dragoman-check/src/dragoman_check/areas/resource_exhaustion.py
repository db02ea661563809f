"""Checks that heavy load does not exhaust the server."""

from __future__ import annotations

import gzip

from ..dialects import CHAT
from ..rules.json_values import require
from ..session import Area, Session
from .http import find_path

HEAVY = Area("load", claims=("chat",), source="https://cwe.mitre.org/data/definitions/400.html")


@HEAVY.check("A small gzip body that unpacks to 100 MB is rejected.", is_destructive=True)
async def bomb(s: Session) -> None:
    body = gzip.compress(b'{"a":"' + b"x" * 100_000_000 + b'"}')
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    exchange = await s.post(CHAT.path, None, raw=body, headers=headers)
    require(400 <= exchange.status < 500, f"status {exchange.status}")


@HEAVY.check("A body of 64 MB is rejected, or answered.", is_destructive=True)
async def large_body(s: Session) -> None:
    exchange = await s.post(CHAT.path, CHAT.ask(s.model, "x" * 64_000_000, 8))
    require(exchange.status < 500, f"status {exchange.status}")


@HEAVY.check(
    "A schema whose automaton is huge is rejected in time, and the server answers meanwhile.",
    is_destructive=True,
)
async def heavy_schema(s: Session) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "multipleOf": 9999991}},
        "required": ["a"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    exchange = await s.post(CHAT.path, CHAT.ask(s.model, "Hi", 16, response_format=form))
    require(exchange.status < 500, f"status {exchange.status}")
    require((await s.get(await find_path(s))).status == 200, "the server no longer answers")


@HEAVY.check(
    "64 streams at once are all answered, or refused with 429 or 503.", is_destructive=True
)
async def many_streams(s: Session) -> None:
    import asyncio  # noqa: PLC0415

    body = CHAT.ask_stream(s.model, "Name a colour.", 8)
    exchanges = await asyncio.gather(*(s.post(CHAT.path, body) for _ in range(64)))
    statuses = {exchange.status for exchange in exchanges}
    require(statuses <= {200, 429, 503}, f"statuses {sorted(statuses)}")
    broken = [
        exchange
        for exchange in exchanges
        if exchange.status == 200 and not CHAT.fold(exchange.body).reason
    ]
    require(not broken, f"{len(broken)} streams never end")
