"""Frames of messages between processes of one server: the length as eight bytes, little-endian, and the message.

An upload of weights can exceed 4 GB, which is more than four bytes can tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

LENGTH_BYTES = 8


class ExactReader(Protocol):
    """The part of asyncio.StreamReader that `read_frame` needs."""

    async def readexactly(self, n: int, /) -> bytes: ...


def build_frame(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


async def read_frame(reader: ExactReader) -> bytes:
    """Read one message. Raises IncompleteReadError at the end of the stream."""
    size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
    return await reader.readexactly(size)


class FrameBuffer:
    """Splits received bytes into messages: a stream socket has no boundaries."""

    __slots__ = ("_received",)

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete now. To be exhausted before the next call."""
        received = self._received
        received += data
        start = 0
        while len(received) - start >= LENGTH_BYTES:
            begin = start + LENGTH_BYTES
            end = begin + int.from_bytes(received[start:begin], "little")
            if len(received) < end:
                break
            # A slice of the bytearray would be one more copy. The view is released, or the buffer could not be resized.
            with memoryview(received) as view:
                message = bytes(view[begin:end])
            yield message
            start = end
        if start:
            # Once for all messages, since each deletion moves the rest of the buffer.
            del received[:start]
