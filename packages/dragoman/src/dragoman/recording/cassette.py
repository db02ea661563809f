"""The file format of a recording: a header line, then one line of JSON per exchange.

Times are seconds since the whole request has arrived, with its body, so a late chunk
does not delay the following ones.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from ..serving.private_file import open_private_file

FORMAT_VERSION = 1


HeaderList = list[tuple[str, str]]


# A recording may be a stranger's. These bounds hold for each that `dragoman record`
# writes.
_Seconds = Annotated[float, Meta(ge=0, le=1e7)]
_FinalStatus = Annotated[int, Meta(ge=200, le=599)]
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

HOP_BY_HOP_HEADERS = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Headers that a proxy does not forward (RFC 9110, section 7.6.1)."""


class CassetteError(ValueError):
    """Raised for files that are not a recording, or one of another version; the message
    names the line.
    """


class Base64Data(Struct, frozen=True):
    base64: bytes


Data = str | Base64Data


def encode_data(raw: bytes) -> Data:
    """Return text if the bytes are UTF-8, else base64."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Base64Data(raw)


def decode_data(data: Data) -> bytes:
    return data.encode() if isinstance(data, str) else data.base64


class RecordedChunk(Struct, frozen=True, array_like=True):
    """A chunk of a response body.

    at: seconds since the request.
    """

    at: _Seconds
    data: Data


class RecordedExchange(Struct, frozen=True, kw_only=True):
    """A request and its response.

    at: arrival of the request, seconds since the start of the recording.
    headers, body: of the request.
    status, answer_headers: of the response.
    head_at: arrival of the response's head, seconds since the request.
    pieces: the response body.
    end_at: end of the response, seconds since the request.
    ended: "complete"; "cut" if the upstream broke off; "left" if the client
        disconnected.
    """

    at: _Seconds
    method: str
    path: str
    query: str = ""
    headers: HeaderList = []
    body: Data = ""
    status: _FinalStatus
    answer_headers: HeaderList = []
    head_at: _Seconds
    pieces: list[RecordedChunk] = []
    end_at: _Seconds
    ended: Literal["complete", "cut", "left"] = "complete"


class CassetteHeader(Struct, frozen=True):
    """The first line of the file, and of every appended run."""

    dragoman_recording: int
    upstream: str


def encode_line(line: RecordedExchange | CassetteHeader) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _find_fault(exchange: RecordedExchange) -> str | None:
    """Return why a response cannot be sent; None if it can."""
    size = sum(len(decode_data(piece.data)) for piece in exchange.pieces)
    if size and exchange.status in (204, 304):
        return f"a response of status {exchange.status} has no body"
    for name, value in exchange.answer_headers:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            return f"the header {name[:100]!r} cannot be sent"
        if name.lower() in HOP_BY_HOP_HEADERS:
            return f"the header {name!r} belongs to a connection"
        is_length = name.lower() == "content-length" and exchange.ended == "complete"
        if is_length and exchange.method != "HEAD" and value != str(size):
            return f"the body has {size} bytes and not the {value[:100]!r} of content-length"
    return None


def read_cassette(lines: Iterable[bytes]) -> list[RecordedExchange]:
    """Parse a recording. Raises CassetteError."""
    exchanges: list[RecordedExchange] = []
    has_header = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            # Only at the start of the line: the body of an exchange may contain the
            # same text.
            if b'"dragoman_recording"' in line[:40]:
                version = msgspec.json.decode(line, type=CassetteHeader).dragoman_recording
                if version != FORMAT_VERSION:
                    raise CassetteError(
                        f"line {number}: the recording has version {version}; the supported "
                        f"version is {FORMAT_VERSION}"
                    )
                has_header = True
                continue
            exchange = msgspec.json.decode(line, type=RecordedExchange)
        except RecursionError:
            raise CassetteError(f"line {number}: nested too deeply") from None
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise CassetteError(f"line {number}: {error}") from None
        if not has_header:
            raise CassetteError(f"line {number}: this is not a recording: the header is missing")
        if (fault := _find_fault(exchange)) is not None:
            raise CassetteError(f"line {number}: {fault}")
        exchanges.append(exchange)
    if not has_header:
        raise CassetteError("the file is not a recording: the header is missing")
    return exchanges


class CassetteWriter:
    """Appends exchanges to a file in a thread, and flushes after each one. Must be
    closed. Only this user can read the file, since it has prompts and answers.
    """

    def __init__(self, path: Path, upstream: str) -> None:
        self._file = os.fdopen(open_private_file(path), "ab")
        self._queue: SimpleQueue[RecordedExchange | None] = SimpleQueue()
        self._file.write(encode_line(CassetteHeader(FORMAT_VERSION, upstream)))
        self._thread = threading.Thread(target=self._write_queued, name="recording", daemon=True)
        self._thread.start()

    def put(self, exchange: RecordedExchange) -> None:
        """Queue an exchange; never blocks."""
        self._queue.put(exchange)

    def close(self) -> None:
        """Write all queued exchanges and close the file."""
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    def _write_queued(self) -> None:
        while (exchange := self._queue.get()) is not None:
            self._file.write(encode_line(exchange))
            self._file.flush()
