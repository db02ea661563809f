"""Call an ASGI application without a server, on a virtual clock that skips waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message

Value = TypeVar("Value")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while callbacks are ready, and then jumps
    to the next timer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        selector: Any = vars(self)["_selector"]
        select = selector.select

        def jump(timeout: float | None = None) -> Any:
            self._now += timeout or 0.0
            return select(0)

        selector.select = jump

    def time(self) -> float:
        return self._now


def jumping(work: Coroutine[Any, Any, Value]) -> Value:
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


@dataclass
class Receiver:
    """A client's `send`.

    slow: seconds that the client takes for the piece of this number.
    """

    messages: list[tuple[float, Message]] = field(default_factory=list[tuple[float, Message]])
    slow: dict[int, float] = field(default_factory=dict[int, float])

    async def send(self, message: Message) -> None:
        self.messages.append((round(asyncio.get_running_loop().time(), 6), message))
        await asyncio.sleep(self.slow.get(len(self.messages) - 1, 0.0))

    @property
    def status(self) -> int:
        return self.messages[0][1]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0][1]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for _, message in self.messages[1:])

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.messages]

    @property
    def finished(self) -> bool:
        return not self.messages[-1][1].get("more_body", False) and len(self.messages) > 1


async def ask(
    app: ASGIApp,
    path: str = "/v1/chat/completions",
    body: bytes = b"{}",
    *,
    method: str = "POST",
    query: str = "",
    headers: dict[str, str] | None = None,
    body_after: float = 0.0,
    leaves_after: float | None = None,
    receiver: Receiver | None = None,
) -> Receiver:
    """Send a request.

    path, query: surrogates stand for bytes that are no UTF-8.
    body_after: seconds until the body is sent.
    leaves_after: seconds from then until the client disconnects.
    """
    found = receiver or Receiver()
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if parts:
            await asyncio.sleep(body_after)
            return parts.pop()
        await asyncio.sleep(1e9 if leaves_after is None else leaves_after)
        return {"type": "http.disconnect"}

    raw = {"host": "localhost"} | (headers or {})
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(errors="surrogateescape"),
        "query_string": query.encode(errors="surrogateescape"),
        "headers": [(name.encode(), value.encode()) for name, value in raw.items()],
    }
    await app(scope, receive, found.send)
    return found
