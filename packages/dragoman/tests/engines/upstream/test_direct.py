"""Both paths of an upstream's deltas: a task that is resumed for each, and direct
writes in the receiving callback.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message
from tests.engines.upstream.relays import build_engine
from tests.http.wire import Wire, serving
from tests.http_client.stub_server import CHUNKED, StubServer, serve
from tests.serving.harness import FixedClock, SequentialIds, scope

from dragoman.core.capabilities import Capabilities
from dragoman.core.engine import EventDelivery, Health
from dragoman.core.events import Event, Started, TextDelta, ToolCallDelta
from dragoman.core.request import GenerateRequest
from dragoman.http import asgi_extensions
from dragoman.parsers import registry
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.output_formats import OutputFormats
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.store import MemoryStore

EVENT_STREAM = CHUNKED[:-2] + b"content-type: text/event-stream\r\n\r\n"


def chunk(**choice: Any) -> bytes:
    body = {"choices": [{"index": 0, **choice}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Client:
    """A connection.

    turns: whether it can be written to directly, in turn; empty means never.
    """

    body: bytes
    turns: list[bool]
    sent: list[bytes] = field(default_factory=list[bytes])
    n_direct: int = 0
    started: bool = False
    _write_checks: int = 0

    @property
    def can_respond(self) -> bool:
        return not self.started and self.turns[0]

    @property
    def can_write(self) -> bool:
        self._write_checks += 1
        return self.started and self.turns[self._write_checks % len(self.turns)]

    def write(self, body: bytes) -> None:
        self.n_direct += 1
        self.sent.append(body)

    def begin(self, _: int, __: object) -> None:
        self.started = True

    def respond(self, _: int, __: object, body: bytes) -> None:
        self.started = True
        self.sent.append(body)

    def hold(self, body: bytes) -> None:
        self.write(body)

    def flush(self) -> None: ...

    def watch(self, _: Callable[[], object] | None, /) -> None: ...

    async def receive(self) -> Message:
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
        else:
            self.sent.append(message["body"])


@asynccontextmanager
async def front(far: StubServer, *, parses: bool) -> AsyncGenerator[ASGIApp]:
    """Build the server in front.

    parses: whether it parses tool calls and reasoning itself.
    """
    upstream = build_engine(
        f"http://127.0.0.1:{far.port}",
        kind="openai",
        native_tools=not parses,
        native_reasoning=not parses,
    )
    reasoning = registry.find_reasoning_format("qwen3")
    tools = registry.find_tool_format("hermes")
    model = ServedModel(
        "m", EventBackend(upstream), 4096, 1_700_000_000, formats=OutputFormats(reasoning, tools)
    )
    await upstream.start()
    try:
        yield build_asgi_app(
            Models([model]), clock=FixedClock(), ids=SequentialIds(), store=MemoryStore()
        )
    finally:
        await upstream.stop()


PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100},
    "/v1/responses": {"input": "Hi", "store": False},
}


def sending(
    packets: list[bytes],
) -> Callable[[StubServer, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await far.read_request(reader)
            if far.requests[-1].startswith(b"GET"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                continue
            writer.write(EVENT_STREAM)
            for packet in packets:
                writer.write(packet)
                for _ in range(6):
                    await asyncio.sleep(0)

    return handle


async def respond(
    path: str, packets: list[bytes], *, stream: bool, turns: list[bool], parses: bool
) -> Client:
    client = Client(json.dumps({"model": "m", "stream": stream, **PATHS[path]}).encode(), turns)
    request_scope = scope(path)
    extensions: dict[str, object] = {asgi_extensions.DISCONNECT_EXTENSION: client.watch}
    if turns:
        extensions[asgi_extensions.DIRECT_WRITE_EXTENSION] = client
    request_scope["extensions"] = extensions
    async with serve(sending(packets)) as far, front(far, parses=parses) as app:
        await cast(Any, app)(request_scope, client.receive, client.send)
    return client


def strip_signatures(client: Client) -> bytes:
    """Replace the encrypted reasoning, whose nonce differs each time."""
    return re.sub(rb'("signature"|"encrypted_content"):"[^"]*"', rb"\1", b"".join(client.sent))


CALL = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": '{"a": 1}'}}
DELTAS = [
    chunk(delta={"content": "Hello"}),
    chunk(delta={"content": " é\u2028"}),
    chunk(delta={"content": "<think>x</think>"}),
    chunk(delta={"reasoning_content": "hm"}),
    chunk(delta={"tool_calls": [CALL]}),
    chunk(delta={"role": "assistant"}),
    b": comment\n\n",
    b"data: {broken\n\n",
    b'data: {"error":{"message":"no"}}\n\n',
]
END = chunk(delta={}, finish_reason="stop") + b"data: [DONE]\n\n"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS)
@given(
    deltas=st.lists(st.lists(st.sampled_from(DELTAS), min_size=1, max_size=3), max_size=8),
    cuts=st.lists(st.integers(0, 2000), max_size=4),
    turns=st.lists(st.booleans(), min_size=1, max_size=5),
    parses=st.booleans(),
)
def test_push_and_pull_drivers_send_equal_bytes(
    path: str,
    stream: bool,
    deltas: list[list[bytes]],
    cuts: list[int],
    turns: list[bool],
    parses: bool,
) -> None:
    pieces = [b"".join(together) for together in deltas]
    data = b"".join(frame(piece) for piece in [*pieces, END]) + b"0\r\n\r\n"
    bounds = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    packets = [data[start:end] for start, end in pairwise(bounds)]

    async def both() -> None:
        pulled = await respond(path, packets, stream=stream, turns=[], parses=parses)
        pushed = await respond(path, packets, stream=stream, turns=turns, parses=parses)
        assert strip_signatures(pushed) == strip_signatures(pulled)

    asyncio.run(both())


async def test_deltas_are_written_in_receiving_callback() -> None:
    """Otherwise the test above would compare one path with itself."""
    packets = [frame(DELTAS[0])] * 20 + [frame(END), b"0\r\n\r\n"]
    client = await respond("/v1/messages", packets, stream=True, turns=[True], parses=False)
    assert client.n_direct >= 15
    assert b"".join(client.sent).count(b"text_delta") == 20


class DirectEngine:
    """An engine that delivers its deltas directly whenever possible, and never stops by
    itself.
    """

    capabilities = Capabilities()

    def __init__(self, *events: Event) -> None:
        self.events = events
        self.n_direct = 0
        self.was_left = False

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        raise NotImplementedError

    async def generate_directly(
        self, request: GenerateRequest, deliver: EventDelivery
    ) -> AsyncGenerator[Event]:
        pending = list(self.events)
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def deliver_next() -> None:
            if pending and deliver(pending[:1]):
                self.n_direct += 1
                del pending[0]
                loop.call_soon(deliver_next)
            else:
                woken.set()

        try:
            yield Started(1)
            while pending:
                yield pending.pop(0)
                woken.clear()
                loop.call_soon(deliver_next)
                await woken.wait()
            await asyncio.Event().wait()
        finally:
            self.was_left = True

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()


async def ask(engine: DirectEngine, **more: Any) -> Client:
    model = ServedModel("m", EventBackend(engine), 4096, 1_700_000_000)
    app = build_asgi_app(
        Models([model]), clock=FixedClock(), ids=SequentialIds(), store=MemoryStore()
    )
    body = {"model": "m", "stream": True, **PATHS["/v1/messages"], **more}
    client = Client(json.dumps(body).encode(), [True])
    request_scope = scope("/v1/messages")
    request_scope["extensions"] = {
        asgi_extensions.DISCONNECT_EXTENSION: client.watch,
        asgi_extensions.DIRECT_WRITE_EXTENSION: client,
    }
    await cast(Any, app)(request_scope, client.receive, client.send)
    return client


async def test_direct_delta_with_stop_string_ends_stream() -> None:
    """The engine would continue, and is cancelled."""
    engine = DirectEngine(
        *(TextDelta(0, text) for text in ("One", " two", " th", "ree", " four", " five"))
    )
    body = b"".join((await ask(engine, stop_sequences=["three"])).sent)
    assert b'"stop_sequence":"three"' in body
    assert b"four" not in body
    events, _, warning = body.partition(b": dragoman_warnings ")
    assert events.endswith(b'data: {"type":"message_stop"}\n\n')
    assert b"usage is an estimate" in warning
    assert engine.n_direct >= 2
    assert engine.was_left


async def test_direct_invalid_event_fails_its_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = DirectEngine(
        TextDelta(0, "One"), TextDelta(0, " two"), ToolCallDelta(0, "{}"), TextDelta(0, " four")
    )
    body = b"".join((await ask(engine)).sent)
    assert b"internal_error" in body or b"api_error" in body
    assert b"four" not in body
    assert engine.n_direct >= 2
    assert engine.was_left
    assert "ToolCallDelta" in caplog.text


async def test_slow_client_applies_backpressure_to_upstream() -> None:
    """Buffers between an upstream that sends and a client that does not read are
    bounded.
    """
    written = 0
    packet = frame(chunk(delta={"content": "x" * 8000}))

    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal written
        while True:
            await far.read_request(reader)
            if not far.requests[-1].startswith(b"GET"):
                break
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.write(EVENT_STREAM)
        while True:
            writer.write(packet)
            await writer.drain()
            written += 1

    async with serve(handle) as far, front(far, parses=False) as app, serving(app) as wire:
        reader, writer = await open_stream(wire)
        before = -1
        while before != written:
            before = written
            for _ in range(3000):
                await asyncio.sleep(0)
        # 64 MB: far more than the sockets of both connections can buffer.
        assert 0 < written * len(packet) < 64 << 20
        while written < before + 1000:
            assert await reader.read(1 << 20)
        writer.close()


async def open_stream(wire: Wire) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    body = json.dumps({"model": "m", "stream": True, **PATHS["/v1/chat/completions"]}).encode()
    reader, writer = await wire.connect()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
        b"application/json\r\n"
    )
    writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    return reader, writer
