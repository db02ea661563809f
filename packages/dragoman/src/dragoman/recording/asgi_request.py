"""ASGI without a framework: the lifespan, a request's checked body, error responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import quote

import anyio
import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from ..core.errors import BodyTooLarge, RequestError
from ..serving.cors import CorsPolicy
from ..serving.host_header import check_host

LifespanHook = Callable[[], Awaitable[None]]


_ASCII = "".join(map(chr, range(0x21, 0x7F)))
# Allows no web page of another origin.
_NO_PAGES = CorsPolicy()


async def run_lifespan(
    receive: Receive, send: Send, on_startup: LifespanHook, on_shutdown: LifespanHook
) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await on_startup()
            await send({"type": "lifespan.startup.complete"})
        else:
            await on_shutdown()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def read_body(
    scope: Scope, receive: Receive, *, limit: int, hosts: Sequence[str]
) -> bytes | None:
    """Read the whole body; None if the client has disconnected.

    Raises:
        RequestError: the body is too large, the Host is not allowed, or the request
            comes from a page of another origin. These checks matter because the
            upstream may need no key.
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
    """Cancel the scope when the client disconnects; runs concurrently with the
    response.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    cancel_scope.cancel()


def read_raw_path(scope: Scope) -> str:
    """Return the path as it was sent. A byte that is not ASCII is percent-encoded: no URL
    may contain it, and it must not become a character with other bytes.
    """
    # `raw_path` is optional in ASGI.
    return _encode_bytes(scope.get("raw_path") or scope["path"].encode())


def read_raw_query(scope: Scope) -> str:
    """Return the query as it was sent, like `read_raw_path`."""
    return _encode_bytes(scope["query_string"])


def _encode_bytes(data: bytes) -> str:
    return quote(data, safe=_ASCII)


async def send_error(send: Send, status: int, message: str) -> None:
    """Send an error in OpenAI's envelope, which most clients can show. Such errors are
    never recorded.
    """
    body = msgspec.json.encode(
        {"error": {"message": message, "type": "dragoman_error", "param": None, "code": None}}
    )
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_request_error(send: Send, error: RequestError) -> None:
    await send_error(send, error.status, error.message)
