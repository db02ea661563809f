"""vLLM's server flags: their additions to responses."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello"}]}
PATHS: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", CHAT),
    ("completions", {"prompt": "Say hello"}),
]


class TickingClock(SystemClock):
    """A clock that advances by a second at each read."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 1.0
        return self.seconds


@asynccontextmanager
async def serving(**options: Any) -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(served_model_name=("m",)), SystemClock())
    await models.start()
    app = build_asgi_app(models, options=ServingOptions(**options), clock=TickingClock())
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as client:
        yield client
    await models.stop()


async def ask(client: httpx2.AsyncClient, path: str, **fields: Any) -> httpx2.Response:
    body = {"model": "m", "max_tokens": 3, "temperature": 0, "ignore_eos": True, **fields}
    answer = await client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize(("path", "fields"), PATHS)
async def test_per_request_metrics_included_for_one_choice(path: str, fields: dict[str, Any]):
    async with serving(enable_per_request_metrics=True) as client:
        metrics = (await ask(client, path, **fields)).json()["metrics"]
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = await ask(client, path, **fields, **usage)
        several = (await ask(client, path, **fields, n=2)).json()
        without_usage = await ask(client, path, **fields, stream=True)
    assert set(metrics) == {
        "time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms",
        "tokens_per_second",
    }  # fmt: skip
    assert metrics["queue_time_ms"] >= 1000
    assert metrics["time_to_first_token_ms"] >= 1000
    assert metrics["mean_itl_ms"] == metrics["generation_time_ms"] / 2
    inference = metrics["time_to_first_token_ms"] + metrics["generation_time_ms"]
    assert metrics["tokens_per_second"] == pytest.approx(3000 / inference)
    chunks = [
        json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")
    ]
    assert [chunk for chunk in chunks if "metrics" in chunk] == [chunks[-1]]
    assert chunks[-1]["metrics"]["queue_time_ms"] >= 1000
    assert "metrics" not in several
    assert "metrics" not in without_usage.text


async def test_per_request_metrics_absent_by_default():
    async with serving() as client:
        assert "metrics" not in (await ask(client, "chat/completions", **CHAT)).json()


@pytest.mark.parametrize(("path", "fields"), PATHS)
async def test_return_tokens_as_token_ids_as_server_default(path: str, fields: dict[str, Any]):
    logprobs: dict[str, Any] = {"logprobs": True} if "messages" in fields else {"logprobs": 1}

    async def tokens(client: httpx2.AsyncClient, **more: Any) -> list[str]:
        (choice,) = (await ask(client, path, **fields, **logprobs, **more)).json()["choices"]
        found: Any = choice["logprobs"]
        return (
            found["tokens"] if "tokens" in found else [token["token"] for token in found["content"]]
        )

    async with serving(return_tokens_as_token_ids=True) as client:
        assert all(token.startswith("token_id:") for token in await tokens(client))
        assert not any(
            token.startswith("token_id:")
            for token in await tokens(client, return_tokens_as_token_ids=False)
        )
    async with serving() as client:
        assert not any(token.startswith("token_id:") for token in await tokens(client))
        assert all(
            token.startswith("token_id:")
            for token in await tokens(client, return_tokens_as_token_ids=True)
        )
