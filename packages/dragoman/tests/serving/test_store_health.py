"""A store whose file is gone: what the routes and the health checks say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.serving.background_server import run_background_server

from dragoman.store import MemoryStore, SqliteStore, StoreHealth

MESSAGES = [{"role": "user", "content": "Hello"}]
STORING: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": "m", "input": "Hello"},
    "/v1/responses?": {"model": "m", "input": "Hello", "background": True},
    "/v1/chat/completions": {"model": "m", "messages": MESSAGES, "store": True},
    "/v1/conversations": {"items": []},
    "/v1/batches": {
        "input_file_id": "file-x", "endpoint": "/v1/responses", "completion_window": "24h",
    },
    "/v1/messages/batches": {
        "requests": [
            {"custom_id": "a", "params": {"model": "m", "max_tokens": 9, "messages": MESSAGES}}
        ]
    },
}  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove open files")
async def test_missing_store_file_fails_health_and_storing_routes(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with run_background_server(store=SqliteStore(path)) as server:
        assert (await server.get("/readyz")).status_code == 200
        path.unlink()
        for probe in ("/health", "/healthz", "/readyz", "/ping"):
            answer = await server.get(probe)
            assert answer.status_code == 503
            reason = answer.json()["reason"]
            assert reason == "the store is unavailable: its file was removed or replaced"
        assert (await server.get("/livez")).status_code == 200
        for route, body in STORING.items():
            answer = await server.post(route, body)
            # Anthropic says 529 when a service is unavailable.
            assert answer.status_code == (529 if "messages" in route else 503), route
            assert "its file was removed or replaced" in answer.text
        async with server.http() as client:
            upload = await client.post(
                "/v1/files", files={"file": b"x"}, data={"purpose": "user_data"}
            )
        assert upload.status_code == 503
        # A stream has begun with 200, so it ends with an error.
        streamed = await server.post("/v1/responses", {**STORING["/v1/responses"], "stream": True})
        assert "its file was removed or replaced" in streamed.text
        assert "response.completed" not in streamed.text
        unstored = {**STORING["/v1/responses"], "store": False}
        assert (await server.post("/v1/responses", unstored)).status_code == 200


class DamagedStore(MemoryStore):
    """A store in a given state."""

    def __init__(self, health: StoreHealth) -> None:
        super().__init__()
        self._health = health

    async def check_health(self) -> StoreHealth:
        return self._health


@pytest.mark.parametrize("probe", ["/health", "/healthz", "/readyz", "/ping", "/health_generate"])
async def test_probe_shows_state_of_store_without_paths(probe: str) -> None:
    warned = StoreHealth(warning="/srv/dragoman/x.db lacks the last 3 stored objects")
    async with run_background_server(store=DamagedStore(warned)) as server:
        answer = await server.get(probe)
        assert answer.status_code == 200
        assert answer.json() == {"warning": ".../x.db lacks the last 3 stored objects"}
    failed = StoreHealth("[Errno 13] Permission denied: '/srv/my store/x.db'")
    async with run_background_server(store=DamagedStore(failed)) as server:
        answer = await server.get(probe)
        assert answer.status_code == 503
        assert answer.json()["reason"].endswith("Permission denied: '.../x.db'")
