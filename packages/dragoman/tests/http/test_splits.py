"""However the bytes of requests are cut into packets, the responses and the received
bodies are the same.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from tests.http.wire import HEAD, echo
from uvicorn.server import ServerState

from dragoman.http.limits import HttpLimits
from dragoman.http.server_connection import Http11ProtocolFactory


class MemoryTransport(asyncio.Transport):
    """A transport in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._paused = self._closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self._closed
        self.written += bytes(data)

    def pause_reading(self) -> None:
        assert not self._paused
        self._paused = True

    def resume_reading(self) -> None:
        assert self._paused
        self._paused = False

    def is_reading(self) -> bool:
        return not self._paused

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True


async def exchange(packets: list[bytes]) -> tuple[bytes, bool]:
    """Return the written bytes, and whether the connection was closed."""
    state = ServerState()
    config = uvicorn.Config(
        echo, lifespan="off", log_config=None, log_level="critical", proxy_headers=False
    )
    connection = Http11ProtocolFactory(HttpLimits(max_buffered_bytes=40, max_head_bytes=1000))(
        config, state, {}
    )
    memory = MemoryTransport()
    connection.connection_made(memory)
    for packet in packets:
        while not memory.is_reading() and not memory.is_closing():  # noqa: ASYNC110 - a transport has no event for it
            await asyncio.sleep(0)
        if memory.is_closing():
            break
        connection.data_received(packet)
    while state.tasks:  # noqa: ASYNC110 - nor has a server
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return memory.written, memory.is_closing()


def _build_counted(body: bytes) -> bytes:
    return b"POST /counted " + HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


def _build_chunked(pieces: list[bytes]) -> bytes:
    chunks = b"".join(b"%x;e=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    return (
        b"POST /chunked "
        + HEAD
        + b"transfer-encoding: chunked\r\n\r\n"
        + chunks
        + b"0\r\nx: y\r\n\r\n"
    )


bodies = st.binary(max_size=60) | st.sampled_from(
    [b"\r\n\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]
)
good = st.one_of(
    st.just(b"GET /a?b " + HEAD + b"\r\n"),
    st.just(b"\r\n\r\nHEAD / " + HEAD + b"\r\n"),
    bodies.map(_build_counted),
    st.lists(bodies, max_size=3).map(_build_chunked),
)
last = st.sampled_from(
    [
        b"",
        b"GET / HTTP/1.1\r\nconnection: close\r\n\r\nGET /never " + HEAD + b"\r\n",
        b"GET / HTTP/1.0\r\n\r\nGET /never " + HEAD + b"\r\n",
        b"GET / HTTP/1.1\r\na: b\r\n c\r\n\r\n",
        b"GET / HTTP/1.1\na: b\n\n",
        b"GET / HTTP/1.1\r\na: b\rc\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"\x16\x03\x01",
    ]
)


@given(requests=st.lists(good, max_size=4), end=last, data=st.data())
def test_requests_split_into_any_packets_get_same_responses(
    requests: list[bytes], end: bytes, data: st.DataObject
) -> None:
    stream = b"".join(requests) + end
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    packets = [
        stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]
    full = asyncio.run(exchange([stream]))
    assert asyncio.run(exchange([packet for packet in packets if packet])) == full
    assert asyncio.run(exchange([bytes([byte]) for byte in stream])) == full
    assert full[0].count(b"HTTP/1.1 200") == len(requests) + end.count(b"/never")
    assert full[1] == bool(end)
