"""A cache hit reveals that a prompt was sent before: vLLM CVE-2025-46570."""

from __future__ import annotations

from typing import Any

import httpx2

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "The secret of the house is in the cellar. " * 10}],
    "max_tokens": 1,
}


async def count_cached(client: httpx2.AsyncClient, key: str, **fields: Any) -> int:
    answer = await client.post(
        "/v1/chat/completions", json=BODY | fields, headers={"authorization": f"Bearer {key}"}
    )
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_prefix_cache_is_isolated_between_keys():
    models = build_models(Settings(), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(
        build_asgi_app(models, options=ServingOptions(api_key=("a", "b")))
    )
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert await count_cached(client, "a") == 0
        assert await count_cached(client, "a") > 0
        assert await count_cached(client, "b") == 0
        # A client's salt is combined with its key, so it cannot equal another key's.
        assert await count_cached(client, "a", cache_salt="mine") == 0
        assert await count_cached(client, "b", cache_salt="mine") == 0
        assert await count_cached(client, "a", cache_salt="mine") > 0
    await models.stop()
