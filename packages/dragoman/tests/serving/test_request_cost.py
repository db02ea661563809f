"""The cost of one request, in calls of our own functions, which does not depend on the
machine.

The bounds are CPython 3.11's counts plus a twenty-fifth. Later versions count less, as they
inline comprehensions. A change that exceeds a bound makes every request slower; one
that goes far below it should lower it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.http import wire
from tests.serving.responses.harness import lifespan

import dragoman
import dragoman_sim
from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

SOURCES = tuple(str(Path(str(package.__file__)).parent) for package in (dragoman, dragoman_sim))
MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT: dict[str, Any] = {"model": "m", "messages": MESSAGES, "max_tokens": 2, "ignore_eos": True}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "streamed chat": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "messages": ("/v1/messages", {"model": "m", "messages": MESSAGES, "max_tokens": 2}),
    "responses": (
        "/v1/responses",
        {"model": "m", "input": "Hello", "max_output_tokens": 16, "store": False},
    ),
    "chat of 12 tokens": ("/v1/chat/completions", {**CHAT, "max_tokens": 12}),
    "chat with a tool": (
        "/v1/chat/completions",
        {**CHAT, "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]},
    ),
}
BOUNDS = {
    "chat": 410,
    "streamed chat": 440,
    "messages": 430,
    "responses": 830,
    "chat of 12 tokens": 680,
    "chat with a tool": 640,
}


class Calls:
    count = 0


@contextmanager
def count_calls() -> Generator[Calls]:
    calls = Calls()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            calls.count += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("kind", BOUNDS)
async def test_request_function_calls_stay_within_bounds(kind: str) -> None:
    models = build_models(
        Settings(model="sim", served_model_name=("m",)).replace(time_scale=1000.0), SystemClock()
    )
    app = build_asgi_app(models)
    path, body = BODIES[kind]
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(data)}\r\n\r\n".encode() + data
    counts: list[int] = []
    async with lifespan(app), wire.serving(app) as server:
        reader, writer = await server.connect()
        # The first runs fill caches, and health checks may run in others: the minimum
        # is the request's own cost.
        for _ in range(8):
            with count_calls() as calls:
                writer.write(request)
                answer = await reader.readuntil(b"\r\n\r\n")
                await _read_body(reader, answer)
                # The end of the response's task.
                while server.state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert answer.startswith(b"HTTP/1.1 200 ")
            counts.append(calls.count)
        writer.close()
    # Checked from below too: a bound far above the actual cost would detect nothing.
    assert BOUNDS[kind] * 0.75 < min(counts) <= BOUNDS[kind], counts


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> None:
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length: "):
            await reader.readexactly(int(line[16:]))
            return
    await reader.readuntil(b"0\r\n\r\n")
