"""All list routes reject an invalid order and an invalid limit, and name the parameter."""

from __future__ import annotations

import pytest
from tests.serving.responses.harness import build_storing_server

from dragoman.engines.scripted import Say, ScriptEntry

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses/{response}/input_items",
        "/v1/conversations/{conversation}/items",
        "/v1/chat/completions",
        "/v1/chat/completions/{completion}/messages",
        "/v1/files",
        "/v1/batches",
    ],
)
async def test_list_routes_invalid_order_or_limit_rejected_by_name(path: str) -> None:
    server = build_storing_server(ScriptEntry((Say("Hello"),), repeat=True))

    async def create(route: str, **body: object) -> str:
        answer = await server.post(route, body)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    path = path.format(
        response=await create("/v1/responses", input=HI),
        conversation=await create("/v1/conversations", items=HI),
        completion=await create("/v1/chat/completions", model="m", messages=HI, store=True),
    )
    for order in ("asc", "desc"):
        assert (await server.get(f"{path}?order={order}")).status_code == 200
    for query in ("order=", "order=up", "order=ASC", "limit=", "limit=0"):
        answer = await server.get(f"{path}?{query}")
        assert answer.status_code == 400, query
        assert answer.json()["error"]["param"] == query.partition("=")[0]
