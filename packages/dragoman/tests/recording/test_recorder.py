"""The recording proxy changes nothing, and records everything but secrets."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

import httpx2
import pytest
from tests.http_transport import FakeTransport

from dragoman.recording.cassette import RecordedChunk, RecordedExchange
from dragoman.recording.proxy import RecordingProxy

from .asgi import ask, jumping


@dataclass
class Clock:
    seconds: float = 100.0

    def now(self) -> float:
        return self.seconds


@dataclass
class Sink:
    exchanges: list[RecordedExchange] = field(default_factory=list[RecordedExchange])

    def put(self, exchange: RecordedExchange) -> None:
        self.exchanges.append(exchange)

    def close(self) -> None:
        """Nothing is open."""


class TimedPieces(httpx2.AsyncByteStream):
    """Pieces at intervals of a quarter of a second; None means that the upstream breaks
    off.
    """

    def __init__(self, clock: Clock, *pieces: bytes | None) -> None:
        self._clock = clock
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self._clock.seconds += 0.25
            if piece is None:
                raise httpx2.ReadError("gone")
            yield piece


@dataclass
class RecorderHarness:
    """A recorder in front of a stub upstream."""

    clock: Clock
    sink: Sink
    seen: list[httpx2.Request]
    recorder: RecordingProxy


def bench(
    answer: Callable[[Clock], httpx2.Response], base: str = "http://upstream/base"
) -> RecorderHarness:
    clock = Clock()
    sink = Sink()
    seen = list[httpx2.Request]()

    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        clock.seconds += 0.5
        return answer(clock)

    recorder = RecordingProxy(
        FakeTransport(handle), base, sink, now=clock.now, hosts=("localhost",)
    )
    return RecorderHarness(clock, sink, seen, recorder)


def build_stream(clock: Clock) -> httpx2.Response:
    headers = {"content-type": "text/event-stream", "set-cookie": "s=1", "connection": "keep-alive"}
    return httpx2.Response(
        200, headers=headers, stream=TimedPieces(clock, b"data: a\n\n", b"data: \xc3", b"\xa5\n\n")
    )


def test_recorder_forwards_chunks_and_records_times() -> None:
    set_up = bench(build_stream)
    received = jumping(ask(set_up.recorder, body=b'{"stream": true}', query="beta=1&key=k"))
    assert received.body == b"data: a\n\ndata: \xc3\xa5\n\n"
    assert [message.get("body") for _, message in received.messages[1:-1]] == [
        b"data: a\n\n",
        b"data: \xc3",
        b"\xa5\n\n",
    ]
    assert received.headers == {"content-type": "text/event-stream", "set-cookie": "s=1"}
    (exchange,) = set_up.sink.exchanges
    assert (exchange.method, exchange.path, exchange.query) == (
        "POST",
        "/v1/chat/completions",
        "beta=1&key=",
    )
    assert (exchange.body, exchange.status, exchange.ended) == ('{"stream": true}', 200, "complete")
    assert (exchange.at, exchange.head_at, exchange.end_at) == (0.0, 0.5, 1.25)
    assert exchange.pieces[0] == RecordedChunk(0.75, "data: a\n\n")
    assert [piece.at for piece in exchange.pieces] == [0.75, 1.0, 1.25]
    assert exchange.answer_headers == [("content-type", "text/event-stream")]


def test_recorder_forwards_headers_and_records_only_allowed() -> None:
    set_up = bench(build_stream)
    sent = {
        "authorization": "Bearer sk-1",
        "x-api-key": "sk-2",
        "content-type": "application/json",
        "connection": "x-hop",
        "x-hop": "1",
        "accept-encoding": "br",
        "content-length": "2",
    }
    jumping(ask(set_up.recorder, headers=sent))
    (request,) = set_up.seen
    assert request.headers["authorization"] == "Bearer sk-1"
    assert request.headers["x-api-key"] == "sk-2"
    assert "accept-encoding" not in request.headers, "a compressed recording cannot be read"
    assert request.headers["host"] == "upstream"
    assert not {"x-hop", "connection", "user-agent"}.intersection(request.headers)
    assert set_up.sink.exchanges[0].headers == [("content-type", "application/json")]
    assert "sk-" not in repr(set_up.sink.exchanges)


@pytest.mark.parametrize(
    "path", ["/v1/models", "//evil.example/v1", "/a%2Fb", "/@evil.example", "/.."]
)
def test_recorder_path_cannot_escape_upstream_base(path: str) -> None:
    set_up = bench(lambda clock: httpx2.Response(200, stream=TimedPieces(clock, b"ok")))
    assert jumping(ask(set_up.recorder, path, method="GET", body=b"")).body == b"ok"
    assert set_up.seen[0].url.host == "upstream"
    assert path == "/.." or set_up.seen[0].url.raw_path.startswith(b"/base/")


@pytest.mark.parametrize(
    ("sent", "forwarded"),
    [
        (b"/caf\xe9", "/caf%E9"),
        ("/café".encode(), "/caf%C3%A9"),
        (b"/caf%e9/%2F//a;b", "/caf%e9/%2F//a;b"),
        (b"//a//", "//a//"),
    ],
)
def test_recorder_forwards_bytes_of_path_and_query(sent: bytes, forwarded: str) -> None:
    set_up = bench(lambda clock: httpx2.Response(200, stream=TimedPieces(clock, b"ok")))
    query = b"model=" + sent[1:]
    jumping(ask(set_up.recorder, os.fsdecode(sent), query=os.fsdecode(query)))
    target = set_up.seen[0].url.raw_path
    assert target == f"/base{forwarded}?model={forwarded[1:]}".encode()
    (exchange,) = set_up.sink.exchanges
    assert exchange.path == forwarded
    assert unquote_to_bytes(exchange.query) == unquote_to_bytes(query)


def test_recorder_forwards_and_records_upstream_error() -> None:
    set_up = bench(
        lambda clock: httpx2.Response(
            429, headers={"retry-after": "3"}, stream=TimedPieces(clock, b"{}")
        )
    )
    received = jumping(ask(set_up.recorder))
    assert (received.status, received.headers["retry-after"]) == (429, "3")
    assert set_up.sink.exchanges[0].status == 429


def test_recorder_truncated_upstream_response_stays_truncated() -> None:
    set_up = bench(lambda clock: httpx2.Response(200, stream=TimedPieces(clock, b"half", None)))
    received = jumping(ask(set_up.recorder))
    assert received.body == b"half"
    assert not received.finished
    assert set_up.sink.exchanges[0].ended == "cut"


def test_recorder_unreachable_upstream_returns_502_unrecorded() -> None:
    def absent(_: Clock) -> httpx2.Response:
        raise httpx2.ConnectError("http://user:password@upstream")

    set_up = bench(absent)
    received = jumping(ask(set_up.recorder))
    assert received.status == 502
    assert b"ConnectFailed" in received.body
    assert b"password" not in received.body
    assert set_up.sink.exchanges == []


def test_recorder_client_disconnect_closes_upstream() -> None:
    closed: list[bool] = []

    class Endless(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncGenerator[bytes]:
            import asyncio

            yield b"first"
            await asyncio.sleep(1e6)

        async def aclose(self) -> None:
            closed.append(True)

    set_up = bench(lambda _: httpx2.Response(200, stream=Endless()))
    received = jumping(ask(set_up.recorder, leaves_after=3.0))
    assert received.body == b"first"
    assert closed
    assert set_up.sink.exchanges[0].ended == "left"


def test_recorder_rejects_foreign_host_and_large_body() -> None:
    set_up = bench(build_stream)
    assert jumping(ask(set_up.recorder, headers={"host": "evil.example"})).status == 421
    assert jumping(ask(set_up.recorder, body=b"x" * (32 * 2**20 + 1))).status == 413
    assert set_up.seen == []


def test_recorder_records_no_secrets_of_bodies() -> None:
    body = b'{"client_secret": {"value": "ek_1"}, "id": "a"}'
    headers = {"content-length": str(len(body)), "location": "http://a/?signature=s"}
    set_up = bench(
        lambda clock: httpx2.Response(
            200, headers=headers, stream=TimedPieces(clock, body[:30], body[30:])
        )
    )
    sent = b'{"tools": [{"type": "mcp", "authorization": "sk-1"}]}'
    received = jumping(ask(set_up.recorder, body=sent, query="code=sk-2"))
    assert received.body == body
    assert received.headers["location"] == headers["location"]
    assert set_up.seen[0].content == sent
    (exchange,) = set_up.sink.exchanges
    assert not any(secret in repr(exchange) for secret in ("ek_1", "sk-1", "sk-2", "signature"))
    assert exchange.answer_headers == []
    expected = '{"client_secret":{"value":""},"id":"a"}'
    assert exchange.pieces == [RecordedChunk(1.0, expected)]
