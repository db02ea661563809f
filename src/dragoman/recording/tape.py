"""The file of a recording: a line of JSON for each exchange. Bytes and times; no sockets, no clock.

    {"dragoman_recording": 1, "upstream": "https://api.example.com"}
    {"at": 0.52, "method": "POST", "path": "/v1/chat/completions", "query": "", "headers": [["content-type", ...]],
     "body": "{...}", "status": 200, "answer_headers": [...], "head_at": 0.31, "pieces": [[0.33, "data: {...}"], ...],
     "end_at": 0.97, "ended": "complete"}

`at` is in seconds since the recording began, the others since the request was there. What is not UTF-8 is written as
{"base64": "..."}. Secrets are never here: only headers of a list of harmless ones are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal
from urllib.parse import parse_qsl, urlencode

import msgspec
from msgspec import Struct

VERSION = 1
ASKED = frozenset(
    {"accept", "content-type", "content-encoding", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta",
     "x-request-id", "x-stainless-lang", "x-stainless-package-version"}
)  # fmt: skip
"""Headers of a request that are kept. A list of what may be written, not of what may not: keys have many names."""
WITHHELD = ("set-cookie", "authorization", "cookie", "token", "secret", "api-key", "apikey", "organization", "project")
"""Headers of an answer that have any of these in their name are not kept."""
SECRETS = ("key", "token", "secret", "sig", "auth", "password", "credential")
"""Parameters of a query that have any of these in their name lose their value."""


class TapeError(ValueError):
    """No recording, or one of another version; the message names the line."""


class Base64(Struct, frozen=True):
    base64: bytes


Data = str | Base64
Headers = list[tuple[str, str]]


def data_of(raw: bytes) -> Data:
    """As text where it is text."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Base64(raw)


def raw_of(data: Data) -> bytes:
    return data.encode() if isinstance(data, str) else data.base64


class Piece(Struct, frozen=True, array_like=True):
    """What came at once."""

    at: float
    data: Data


class Exchange(Struct, frozen=True, kw_only=True):
    """ended: complete; cut by the upstream, in the middle; or left by the client."""

    at: float
    method: str
    path: str
    query: str = ""
    headers: Headers = []
    body: Data = ""
    status: int
    answer_headers: Headers = []
    head_at: float
    pieces: list[Piece] = []
    end_at: float
    ended: Literal["complete", "cut", "left"] = "complete"


class Head(Struct, frozen=True):
    """The first line, and that of every run that was appended."""

    dragoman_recording: int
    upstream: str


def kept_headers(raw: Iterable[tuple[str, str]]) -> Headers:
    """Of a request."""
    return [(name, value) for name, value in raw if name.lower() in ASKED]


def kept_answer_headers(raw: Iterable[tuple[str, str]]) -> Headers:
    return [(name, value) for name, value in raw if not any(word in name.lower() for word in WITHHELD)]


def kept_query(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    return urlencode([(name, "" if any(word in name.lower() for word in SECRETS) else value) for name, value in pairs])


def question(method: str, path: str, query: str, body: bytes) -> bytes:
    """What two requests share that are the same question: where it goes, and the body as JSON has it."""
    parts = [method, path, urlencode(sorted(parse_qsl(kept_query(query), keep_blank_values=True)))]
    try:
        said = msgspec.json.encode(msgspec.json.decode(body), order="deterministic") if body else b""
    except (msgspec.MsgspecError, UnicodeError):
        said = body
    return blake2b("\n".join(parts).encode() + b"\n" + said, digest_size=16).digest()


def written(line: Exchange | Head) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def read(lines: Iterable[bytes]) -> list[Exchange]:
    """Raises TapeError."""
    found: list[Exchange] = []
    headed = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            if b'"dragoman_recording"' in line[:40]:
                version = msgspec.json.decode(line, type=Head).dragoman_recording
                if version != VERSION:
                    raise TapeError(
                        f"line {number}: the recording has version {version}; the supported version is {VERSION}"
                    )
                headed = True
                continue
            exchange = msgspec.json.decode(line, type=Exchange)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise TapeError(f"line {number}: {error}") from None
        if not headed:
            raise TapeError(f"line {number}: this is not a recording: the header is missing")
        found.append(exchange)
    return found
