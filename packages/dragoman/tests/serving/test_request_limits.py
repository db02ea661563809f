"""The limits of a key on every route that it may call."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.hardening.test_routes import TABLE
from tests.serving.test_tenancy import ROUTES, Server, serving, tenant

from dragoman.serving.auth import Access
from dragoman.serving.route import RequestCost
from dragoman.serving.tenancy import MIN_READS

MESSAGES = [{"role": "user", "content": "Hello"}]
UNCALLED: dict[str, dict[str, Any]] = {
    "/tokenize": {"model": "m", "prompt": "Hello"},
    "/detokenize": {"model": "m", "tokens": [1, 2]},
    "/v1/messages/count_tokens": {"model": "m", "messages": MESSAGES},
    "/v1/conversations": {"items": []},
    "/v1/responses/input_tokens": {"model": "m", "input": "Hello"},
    "/v1/chat/completions/render": {"model": "m", "messages": MESSAGES},
    "/v1/chat/completions/explain": {"model": "m", "messages": MESSAGES},
    "/api/show": {"model": "m"},
    # An empty prompt loads the model.
    "/api/chat": {"model": "m", "messages": []},
}
"""Bodies of requests that call no model."""
USER_CALLS = [
    (path, method)
    for path, route in TABLE.items()
    if route.access is Access.USER
    for method in route.operations
]
ENDLESS = "/models/sse"
"""The stream of this route ends with its client only."""
PLACES = {"{model:path}": "m", "{id}": "x", "{item}": "y", "{file}": "x", "{batch}": "x"}


async def send(server: Server, path: str, method: str = "POST", body: object = {}) -> int:
    for name, value in {**PLACES, "{digest}": "x"}.items():
        path = path.replace(name, value)
    async with server.client("a") as client:
        answer = await client.request(method, path, json=None if method == "GET" else body)
    return answer.status_code


async def count_requests(server: Server, limit: int) -> int:
    answer: httpx2.Response = await server.get("a", "/v1/models")
    return limit - int(answer.headers["x-ratelimit-remaining-requests"])


async def test_every_route_of_users_is_limited():
    async with serving({"a": tenant("a", requests_per_minute=1)}) as server:
        for _ in range(MIN_READS):
            assert await send(server, "/v1/models", "GET") == 200
        assert await send(server, "/tokenize", body=UNCALLED["/tokenize"]) == 200
        for path, method in USER_CALLS:
            assert await send(server, path, method) == 429, (method, path)


async def test_every_route_of_users_costs_one_request():
    limit = 1000
    async with serving({"a": tenant("a", requests_per_minute=limit)}) as server:
        for path, method in USER_CALLS:
            if path == ENDLESS:
                continue
            before = await count_requests(server, limit)
            await send(server, path, method, ROUTES.get(path) or UNCALLED.get(path) or {})
            is_read = TABLE[path].find_cost(method) is RequestCost.READ
            assert await count_requests(server, limit) == before + (not is_read), (method, path)


@pytest.mark.parametrize("path", UNCALLED)
async def test_request_without_call_is_limited(path: str):
    async with serving({"a": tenant("a", requests_per_minute=2), "b": tenant("b")}) as server:
        for _ in range(2):
            assert await send(server, path, body=UNCALLED[path]) < 429
        rejected = await server.post("a", path, UNCALLED[path])
        assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "30")
        assert (await server.post("b", path, UNCALLED[path])).status_code < 429
        server.clock.elapsed = 30
        assert await send(server, path, body=UNCALLED[path]) < 429


@pytest.mark.parametrize("body", [{}, UNCALLED["/tokenize"]])
async def test_request_without_call_gives_back_its_slot(body: dict[str, Any]):
    async with serving({"a": tenant("a", concurrent_requests=1)}) as server:
        for _ in range(3):
            assert await send(server, "/tokenize", body=body) < 429
        assert (await server.post("a")).status_code == 200


async def test_compaction_needs_one_slot_and_one_request():
    limits = tenant("a", concurrent_requests=1, requests_per_minute=9)
    async with serving({"a": limits}) as server:
        body = {"model": "m", "input": "Hello"}
        answer = await server.post("a", "/v1/responses/compact", body)
        assert answer.status_code == 200, answer.text
        assert await count_requests(server, 9) == 1


async def test_reads_leave_requests_to_calls():
    async with serving({"a": tenant("a", requests_per_minute=1)}) as server:
        while await send(server, "/v1/models", "GET") == 200:
            pass
        rejected = await server.get("a", "/v1/models")
        assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
        assert "reads per min" in rejected.json()["error"]["message"]
        assert (await server.post("a")).status_code == 200
