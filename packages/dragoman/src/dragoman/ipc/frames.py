"""Length-prefixed frames for messages between the processes of a server.

A frame is the length in eight bytes, little-endian, and the message. Four bytes would
not suffice: an upload of weights can exceed 4 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Protocol

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


def read_pipe_frame(pipe: IO[bytes]) -> bytes | None:
    """Wait for one message of a blocking pipe; None at its end, and if it ends within a
    message.
    """
    length = pipe.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    size = int.from_bytes(length, "little")
    body = pipe.read(size)
    return body if len(body) == size else None


def write_pipe_frame(pipe: IO[bytes], body: bytes) -> None:
    pipe.write(build_frame(body))
    pipe.flush()


class FrameBuffer:
    """Splits the bytes received from a stream socket into messages."""

    __slots__ = ("_received",)

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete now. Exhaust the iterator before the
        next call.
        """
        received = self._received
        received += data
        start = 0
        while len(received) - start >= LENGTH_BYTES:
            begin = start + LENGTH_BYTES
            end = begin + int.from_bytes(received[start:begin], "little")
            if len(received) < end:
                break
            # A memoryview saves the copy that a slice of the bytearray would make. It
            # must be released before the buffer is resized.
            with memoryview(received) as view:
                message = bytes(view[begin:end])
            yield message
            start = end
        if start:
            # Deleted once for all messages, since each deletion moves the rest of the
            # buffer.
            del received[:start]
