"""A real uvicorn on a real socket with the embedded model: behavior that only appears
there.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import pytest_asyncio

from dragoman.core.engine import Health
from dragoman.launch import Server, ShutdownConfig, build_models, build_uvicorn_config
from dragoman.pipeline.model_registry import Models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

STORY: list[Any] = [{"role": "user", "content": "Tell me a story."}]
ENDLESS = {"messages": STORY, "max_tokens": 20_000, "ignore_eos": True}


@dataclass
class Served:
    port: int
    models: Models
    server: Server

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key="none", base_url=f"http://127.0.0.1:{self.port}/v1", max_retries=0
        )

    @property
    def health(self) -> Health:
        return next(iter(self.models)).backend.engine.health()

    async def until(self, *, running: int, waiting: int = 0) -> None:
        """Poll, since the engine's thread has no event for it. The test's own timeout
        limits the wait.
        """
        while (self.health.running, self.health.waiting) != (running, waiting):  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def raw(self, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        return reader, writer


@pytest_asyncio.fixture
async def served() -> AsyncGenerator[Served]:
    settings = Settings(max_num_seqs=2)
    models = build_models(settings, SystemClock())
    server = Server(
        build_uvicorn_config(build_asgi_app(models), settings),
        models,
        shutdown_config=ShutdownConfig(timeout=0.0),
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0)
        yield Served(listener.getsockname()[1], models, server)
        server.should_exit = True
        await task


async def test_tcp_sdk_stream_equals_full_response(served: Served) -> None:
    async with served.client() as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=STORY, stream=True, temperature=0
        )
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        full = await client.chat.completions.create(model="tiny", messages=STORY, temperature=0)
    assert "".join(texts) == full.choices[0].message.content


@pytest.mark.parametrize("streamed", [False, True])
async def test_tcp_disconnect_during_decode_frees_slot(served: Served, streamed: bool) -> None:
    _, writer = await served.raw({**ENDLESS, "stream": streamed})
    await served.until(running=1)
    writer.close()
    await served.until(running=0)


@pytest.mark.parametrize("streamed", [False, True])
async def test_tcp_disconnect_while_queued_removes_request(served: Served, streamed: bool) -> None:
    talking = [await served.raw({**ENDLESS, "stream": True}) for _ in range(2)]
    await served.until(running=2)
    _, queued = await served.raw({**ENDLESS, "stream": streamed})
    await served.until(running=2, waiting=1)
    queued.close()
    await served.until(running=2)
    for _, writer in talking:
        writer.close()
    await served.until(running=0)


async def test_tcp_disconnect_during_prefill_frees_slot(served: Served) -> None:
    prompt = [{"role": "user", "content": "word " * 9_000}]
    _, writer = await served.raw({"messages": prompt, "stream": True})
    await served.until(running=1)
    writer.close()
    await served.until(running=0)


async def test_tcp_queued_stream_gets_response_headers(served: Served) -> None:
    talking = [await served.raw({**ENDLESS, "stream": True}) for _ in range(2)]
    await served.until(running=2)
    reader, queued = await served.raw({**ENDLESS, "stream": True})
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    for writer in (queued, *(writer for _, writer in talking)):
        writer.close()
    await served.until(running=0)


async def test_tcp_second_turn_hits_prefix_cache(served: Served) -> None:
    async with served.client() as client:
        first = [{"role": "user", "content": "Once upon a time there was a fox. " * 4}]
        reply = await client.chat.completions.create(model="tiny", messages=first, temperature=0)  # pyright: ignore
        reply_message: Any = {"role": "assistant", "content": reply.choices[0].message.content}
        second: Any = [*first, reply_message, {"role": "user", "content": "Thanks!"}]
        again = await client.chat.completions.create(model="tiny", messages=second, temperature=0)
    assert reply.usage is not None
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    cached = again.usage.prompt_tokens_details.cached_tokens or 0
    assert reply.usage.prompt_tokens // 16 * 16 <= cached < again.usage.prompt_tokens


async def test_tcp_oversized_headers_return_431(served: Served) -> None:
    """vLLM CVE-2025-48956."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 33_000)
    output = await reader.read(-1)
    writer.close()
    assert output.startswith(b"HTTP/1.1 431 ")
    assert output.endswith(b"larger than the 32768 bytes that are allowed.")
