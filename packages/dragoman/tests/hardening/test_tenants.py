"""Stored objects belong to the key that created them. Ids of others: Open WebUI
CVE-2026-45349, LiteLLM #35536. SQL injection: LiteLLM CVE-2026-42208.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.serving.background_server import run_background_server

from dragoman.serving.clock import RandomIdGenerator
from dragoman.serving.serving_options import ServingOptions
from dragoman.store import SqliteStore

KEYS = ServingOptions(api_key=("a", "b"))
HI: Any = [{"role": "user", "content": "hi"}]
LINE: Any = {"custom_id": "1", "params": {"model": "m", "max_tokens": 5, "messages": HI}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "responses": ("/v1/responses", {"model": "m", "input": "hi"}),
    "conversations": ("/v1/conversations", {"metadata": {"x": "y"}}),
    "chats": ("/v1/chat/completions", {"model": "m", "messages": HI, "store": True}),
    "message batches": ("/v1/messages/batches", {"requests": [LINE]}),
}
BENEATH = {
    "responses": [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")],
    "conversations": [
        ("GET", ""),
        ("POST", ""),
        ("DELETE", ""),
        ("GET", "/items"),
        ("POST", "/items"),
    ],
    "chats": [("GET", ""), ("POST", ""), ("DELETE", ""), ("GET", "/messages")],
    "message batches": [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/results")],
}
SENT: dict[str, Any] = {
    "metadata": {},
    "items": [{"type": "message", "role": "user", "content": "hi"}],
}


async def ask(client: httpx2.AsyncClient, method: str, path: str, key: str) -> tuple[int, str]:
    body = SENT if method == "POST" else None
    answer = await client.request(
        method, path, json=body, headers={"authorization": f"Bearer {key}"}
    )
    return answer.status_code, answer.text.replace(answer.headers["x-request-id"], "")


@pytest.mark.parametrize("kind", BODIES)
async def test_foreign_object_id_returns_same_404_as_missing_id(kind: str):
    async with run_background_server(options=KEYS) as server, server.http() as client:
        path, body = BODIES[kind]
        created = (await client.post(path, json=body, headers={"authorization": "Bearer a"})).json()
        absent = created["id"][:-16] + "0" * 16
        for method, rest in BENEATH[kind]:
            foreign = await ask(client, method, f"{path}/{created['id']}{rest}", "b")
            nothing = await ask(client, method, f"{path}/{absent}{rest}", "b")
            assert foreign[0] == 404
            assert (foreign[0], foreign[1].replace(created["id"], absent)) == nothing
        assert (await ask(client, "GET", f"{path}/{created['id']}", "a"))[0] == 200


def test_ids_have_128_random_bits():
    ids = {RandomIdGenerator().new("x_") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(id) == 2 + 32 and int(id[2:], 16) >= 0 for id in ids)
    bits = 0
    for id in ids:
        bits |= int(id[2:], 16)
    assert bits == 2**128 - 1


HOSTILE = [
    "' OR '1'='1",
    "x'; DROP TABLE records; --",
    '" OR ""="',
    "%",
    "_",
    "\\",
    "x\x00y",
    "$1",
    "?",
]


@pytest.mark.parametrize("text", HOSTILE)
async def test_client_text_is_never_executed_as_sql(text: str, tmp_path: Path):
    async with (
        run_background_server(options=KEYS, store=SqliteStore(tmp_path / "store.db")) as server,
        server.http() as client,
    ):
        key = {"authorization": "Bearer a"}
        body = {
            "model": "m",
            "messages": HI,
            "store": True,
            "metadata": {text: text} if "\x00" not in text else {},
        }
        id = (await client.post("/v1/chat/completions", json=body, headers=key)).json()["id"]
        for path in (
            "/v1/responses/",
            "/v1/conversations/",
            "/v1/chat/completions/",
            "/v1/files/",
            "/v1/batches/",
        ):
            found = await client.get(
                httpx2.URL("http://localhost").join(path + _quote(text)), headers=key
            )
            assert found.status_code in (404, 405), found.text
        for name in ("after", "order", "limit", "model", f"metadata[{text}]"):
            listed = await client.get("/v1/chat/completions", params={name: text}, headers=key)
            assert listed.status_code in (200, 400, 404), listed.text
        continued = await client.post(
            "/v1/responses",
            json={"model": "m", "input": "hi", "previous_response_id": text},
            headers=key,
        )
        assert continued.status_code in (400, 404), continued.text
        assert (await client.get(f"/v1/chat/completions/{id}", headers=key)).status_code == 200


def _quote(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())
