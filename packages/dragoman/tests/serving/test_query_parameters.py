"""A query parameter is applied, rejected, or named in a warning, like one of the body."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.store import MemoryStore

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
WARNINGS = "x-dragoman-warnings"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(model="scripted"), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models, store=MemoryStore()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http_client:
        yield http_client
    await models.stop()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("/v1/models?limit=1&after_id=x", ["after_id", "limit"]),
        ("/v1/chat/completions?limit=2&order=asc&model=m&metadata[a]=b", []),
        ("/v1/chat/completions?page=2", ["page"]),
        ("/v1/files?purpose=batch&limit=1&oder=asc", ["oder"]),
        ("/v1/batches?limit=1&status=done", ["status"]),
        ("/v1/messages/batches?limit=1&beta=true&order=asc", ["order"]),
        ("/api/tags?name=x", ["name"]),
    ],
)
async def test_unknown_query_parameter_named_in_warning(
    client: httpx2.AsyncClient, path: str, ignored: list[str]
) -> None:
    answer = await client.get(
        path, headers={"anthropic-version": "2023-06-01"} if "messages" in path else {}
    )
    assert answer.status_code == 200, answer.text
    expected = "; ".join(f"'{name}' is ignored: unknown query parameter" for name in ignored)
    assert answer.headers.get(WARNINGS, "") == expected


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stream", [False, True])
async def test_unknown_query_parameter_of_chat_named_in_warning(
    client: httpx2.AsyncClient, stream: bool
) -> None:
    body = {**CHAT, "stream": stream}
    answer = await client.post(
        "/v1/chat/completions?stream=true&api-version=1", json=body, headers={WARNINGS: "body"}
    )
    assert answer.headers[WARNINGS] == "'stream' is ignored: unknown query parameter"
    assert "'stream' is ignored: unknown query parameter" in answer.text


@pytest.mark.asyncio(loop_scope="module")
async def test_known_query_parameters_cause_no_warnings(
    client: httpx2.AsyncClient,
) -> None:
    rejected = await client.get("/v1/chat/completions?limit=0&order=asc")
    assert (rejected.status_code, WARNINGS in rejected.headers) == (400, False)
    id = (await client.post("/v1/responses", json={"input": "Hi"})).json()["id"]
    response = await client.get(
        f"/v1/responses/{id}?include[]=reasoning.encrypted_content&stream=false"
    )
    assert (response.status_code, WARNINGS in response.headers) == (200, False)
    listed = await client.get(f"/v1/responses/{id}/input_items?after=&limit=1&foo=1")
    assert listed.headers[WARNINGS] == "'foo' is ignored: unknown query parameter"
