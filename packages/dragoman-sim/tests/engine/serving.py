"""A simulated vLLM behind the real application, in the test's process, at a thousand
times the real speed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
from starlette.types import ASGIApp

from dragoman.launch import build_models, build_serving_options
from dragoman.pipeline.engine_backends import TokenBackend
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman_sim.engine.engine import SimulatorEngine


@dataclass
class Twin:
    """A simulated server with its clients.

    model: its name.
    """

    app: ASGIApp
    engine: SimulatorEngine
    model: str = "sim-model"

    def http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self.app), base_url="http://localhost"
        )

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key="x", base_url="http://localhost/v1", http_client=self.http(), max_retries=0
        )

    async def post(
        self, path: str, json: object = None, headers: dict[str, str] | None = None
    ) -> httpx2.Response:
        async with self.http() as client:
            return await client.post(path, json=json, headers=headers)

    async def get(self, path: str) -> httpx2.Response:
        async with self.http() as client:
            return await client.get(path)

    async def chat(
        self, text: str = "Hello there.", headers: dict[str, str] | None = None, **more: Any
    ) -> Any:
        """Return the JSON of a response that is not a stream."""
        messages = [{"role": "user", "content": text}]
        answer = await self.post("/v1/chat/completions", {"messages": messages} | more, headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def get_text(self, text: str = "Hello there.", **more: Any) -> str | None:
        return (await self.chat(text, **more))["choices"][0]["message"]["content"]


async def post_chat(app: ASGIApp, **more: Any) -> dict[str, Any]:
    """Send a chat request to an application, and return the JSON of the response."""
    messages = [{"role": "user", "content": "Hello there."}]
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": messages} | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


@asynccontextmanager
async def twin(**settings: Any) -> AsyncGenerator[Twin]:
    usual: dict[str, Any] = {
        "model": "sim",
        "served_model_name": ("sim-model",),
        "time_scale": 1000.0,
    }
    values = Settings().replace(**usual | settings)
    models = build_models(values, SystemClock())
    app = build_asgi_app(models, options=build_serving_options(values))
    await models.start()
    backend = next(iter(models)).backend
    assert isinstance(backend, TokenBackend)
    assert isinstance(backend.engine, SimulatorEngine)
    try:
        yield Twin(app, backend.engine)
    finally:
        await models.stop()
