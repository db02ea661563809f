"""A stream that fails before its headers: the error is a complete response without
keepalives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from dragoman.core.errors import DragomanError, EngineError
from dragoman.dialects.ollama import LineFraming
from dragoman.serving.disconnect import ignore_disconnect
from dragoman.serving.replay_responder import ReplayResponder
from dragoman.serving.responder import RawHeaders, ResponseStart
from dragoman.serving.stream_keepalive import StreamMonitor, StreamTimeouts


def render_error(_: DragomanError) -> tuple[int, RawHeaders, bytes]:
    return 500, [], b"failed"


@pytest.mark.parametrize("steps", range(6))
async def test_stream_failing_before_headers_sends_no_keepalive(steps: int):
    """The keepalive is due while the error is being sent, at any iteration of the loop."""

    async def fail() -> AsyncGenerator[bytes]:
        for _ in range(steps):
            await asyncio.sleep(0)
        raise EngineError("failed")
        yield b""

    sent: list[Message] = []

    async def send(message: Message) -> None:
        await asyncio.sleep(0)
        sent.append(message)

    start = ResponseStart([], 0.0, render_error)
    responder = ReplayResponder(fail(), LineFraming(), start, StreamMonitor(StreamTimeouts()))
    await responder(ignore_disconnect, send)
    first, *bodies = sent
    text = b"".join(message["body"] for message in bodies)
    if first["status"] == 500:
        assert text == b"failed"
    else:
        assert text.lstrip(b" ") == b'{"error":"failed"}\n', (
            "headers sent by a keepalive are those of a stream"
        )
