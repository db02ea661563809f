"""The file format of a recording: one line of JSON per exchange. Knows bytes and times; no sockets, no clock.

    {"dragoman_recording": 1, "upstream": "https://api.example.com"}
    {"at": 0.52, "method": "POST", "path": "/v1/chat/completions", "query": "", "headers": [["content-type", ...]],
     "body": "{...}", "status": 200, "answer_headers": [...], "head_at": 0.31, "pieces": [[0.33, "data: {...}"], ...],
     "end_at": 0.97, "ended": "complete"}

`at` is in seconds since the recording began, the others since the request arrived. Data that is not UTF-8 is encoded as
{"base64": "..."}. Secrets are not recorded: only allowlisted request headers are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Literal
from urllib.parse import parse_qsl, urlencode

import anyio
import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from ..core.errors import BodyTooLarge, RequestError
from ..serving.cors import CorsPolicy
from ..serving.host import check_host

VERSION = 1
RECORDED_REQUEST_HEADERS = frozenset(
    {"accept", "content-type", "content-encoding", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta",
     "x-request-id", "x-stainless-lang", "x-stainless-package-version"}
)  # fmt: skip
"""Request headers that are recorded. An allowlist, as API keys are sent under many names."""
REDACTED_HEADER_WORDS = (
    "set-cookie",
    "authorization",
    "cookie",
    "token",
    "secret",
    "api-key",
    "apikey",
    "organization",
    "project",
)
"""Response headers whose names contain any of these words are not recorded."""
SECRET_QUERY_WORDS = ("key", "token", "secret", "sig", "auth", "password", "credential")
"""Query parameters whose names contain any of these words are recorded without their values."""


class CassetteError(ValueError):
    """Not a recording, or one of another version; the message names the line."""


class Base64Data(Struct, frozen=True):
    base64: bytes


Data = str | Base64Data
HeaderList = list[tuple[str, str]]


def encode_data(raw: bytes) -> Data:
    """Text where the bytes are UTF-8, else base64."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Base64Data(raw)


def decode_data(data: Data) -> bytes:
    return data.encode() if isinstance(data, str) else data.base64


class RecordedChunk(Struct, frozen=True, array_like=True):
    """A chunk of a response body.

    at: seconds since the request arrived.
    """

    at: float
    data: Data


class RecordedExchange(Struct, frozen=True, kw_only=True):
    """A request and its response.

    ended: complete; cut by the upstream in the middle; or left by the client.
    """

    at: float
    method: str
    path: str
    query: str = ""
    headers: HeaderList = []
    body: Data = ""
    status: int
    answer_headers: HeaderList = []
    head_at: float
    pieces: list[RecordedChunk] = []
    end_at: float
    ended: Literal["complete", "cut", "left"] = "complete"


class CassetteHeader(Struct, frozen=True):
    """The first line of the file, and of every appended run."""

    dragoman_recording: int
    upstream: str


def filter_request_headers(raw: Iterable[tuple[str, str]]) -> HeaderList:
    """The recorded headers of a request."""
    return [(name, value) for name, value in raw if name.lower() in RECORDED_REQUEST_HEADERS]


def filter_response_headers(raw: Iterable[tuple[str, str]]) -> HeaderList:
    return [(name, value) for name, value in raw if not any(word in name.lower() for word in REDACTED_HEADER_WORDS)]


def redact_query(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    return urlencode(
        [(name, "" if any(word in name.lower() for word in SECRET_QUERY_WORDS) else value) for name, value in pairs]
    )


def hash_request(method: str, path: str, query: str, body: bytes) -> bytes:
    """A key that equal requests share: method, path, query, and the body as normalised JSON."""
    # Redacted as in the file: a key that depended on a secret's value would match no recorded request.
    parts = [method, path, urlencode(sorted(parse_qsl(redact_query(query), keep_blank_values=True)))]
    try:
        # So that a client which writes its fields in another order, or with other white space, gets the recorded
        # response.
        canonical_body = msgspec.json.encode(msgspec.json.decode(body), order="deterministic") if body else b""
    except (msgspec.MsgspecError, UnicodeError):
        canonical_body = body
    return blake2b("\n".join(parts).encode() + b"\n" + canonical_body, digest_size=16).digest()


def encode_line(line: RecordedExchange | CassetteHeader) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def read_cassette(lines: Iterable[bytes]) -> list[RecordedExchange]:
    """Parse a recording. Raises CassetteError."""
    exchanges: list[RecordedExchange] = []
    has_header = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            # At the beginning only: the body of an exchange may contain the same text.
            if b'"dragoman_recording"' in line[:40]:
                version = msgspec.json.decode(line, type=CassetteHeader).dragoman_recording
                if version != VERSION:
                    raise CassetteError(
                        f"line {number}: the recording has version {version}; the supported version is {VERSION}"
                    )
                has_header = True
                continue
            exchange = msgspec.json.decode(line, type=RecordedExchange)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise CassetteError(f"line {number}: {error}") from None
        if not has_header:
            raise CassetteError(f"line {number}: this is not a recording: the header is missing")
        exchanges.append(exchange)
    return exchanges


# ASGI helpers of recorder and player: lifespan, body, Host check, plain errors.

LifespanHook = Callable[[], Awaitable[None]]
_NO_PAGES = CorsPolicy()


async def run_lifespan(receive: Receive, send: Send, on_startup: LifespanHook, on_shutdown: LifespanHook) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await on_startup()
            await send({"type": "lifespan.startup.complete"})
        else:
            await on_shutdown()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def read_body(scope: Scope, receive: Receive, *, limit: int, hosts: Sequence[str]) -> bytes | None:
    """Read the whole body; None if the client has disconnected.

    Raises:
        RequestError: the body is too large, the Host is not allowed, or the request comes from a page of another
        origin.
        These checks matter because the upstream may need no key.
    """
    headers = Headers(scope=scope)
    check_host(headers, tuple(hosts))
    _NO_PAGES.check_origin(headers, by_name=True)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise BodyTooLarge(f"The body has more than {limit} bytes.")
        if not message.get("more_body", False):
            return b"".join(parts)


async def cancel_on_disconnect(receive: Receive, cancel_scope: anyio.CancelScope) -> None:
    """Cancel the scope when the client disconnects; runs beside a response."""
    while (await receive())["type"] != "http.disconnect":
        pass
    cancel_scope.cancel()


def read_raw_path(scope: Scope) -> str:
    """The path as it was sent, with its percent-encoding."""
    # `raw_path` is optional in ASGI.
    return (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")


async def send_error(send: Send, status: int, message: str) -> None:
    """Send an error in OpenAI's envelope, which most clients can show. Such errors are never recorded."""
    body = msgspec.json.encode({"error": {"message": message, "type": "dragoman_error", "param": None, "code": None}})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_request_error(send: Send, error: RequestError) -> None:
    await send_error(send, error.status, error.message)
