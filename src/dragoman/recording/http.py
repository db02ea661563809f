"""What recorder and player have in common as ASGI applications: lifespan, body, host, plain errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from ..core.errors import BodyTooLarge, RequestError
from ..serving.cors import CorsPolicy
from ..serving.host import check_host

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
    """All of it; None if the client has left.

    Raises RequestError, also for a Host that is not ours and for pages of other origins: an upstream may need no key.
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
    """To be run beside an answer: what is left of it ends when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    cancel_scope.cancel()


def read_raw_path(scope: Scope) -> str:
    """As it was sent, escapes and all."""
    return (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")


async def send_error(send: Send, status: int, message: str) -> None:
    """In OpenAI's envelope, which most clients can show. It is never recorded, and never was."""
    body = msgspec.json.encode({"error": {"message": message, "type": "dragoman_error", "param": None, "code": None}})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_request_error(send: Send, error: RequestError) -> None:
    await send_error(send, error.status, error.message)
