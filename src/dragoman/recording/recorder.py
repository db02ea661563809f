"""A pass-through in front of an upstream: bytes go on as they come, and are kept with their times.

What the client sends goes up as it is (its keys, too), what comes back goes down as it is; only hop-by-hop headers
change, and no compression is asked for, so that the recording can be read. It adds no waiting to any token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import anyio
import httpx2
from starlette.types import Receive, Scope, Send

from ..core.errors import RequestError
from .http import cancel_when_left, lifespan, read_body, refuse, refuse_error, sent_path
from .tape import Exchange, Piece, data_of, kept_answer_headers, kept_headers, kept_query

HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
"""RFC 9110, 7.6.1."""
Pairs = list[tuple[bytes, bytes]]


class Tape(Protocol):
    def put(self, exchange: Exchange) -> None: ...

    def close(self) -> None: ...


class Recorder:
    """An ASGI application. client: asks the upstream; its base_url is where. now: seconds, ever growing."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        tape: Tape,
        *,
        now: Callable[[], float],
        hosts: Sequence[str],
        max_body_bytes: int = 32 * 2**20,
    ) -> None:
        # Headers of its own, such as its name, would be headers that the client has not sent.
        for name in list(client.headers):
            del client.headers[name]
        self._client, self._tape, self._now, self._hosts = client, tape, now, hosts
        self._max_body_bytes = max_body_bytes
        self._begin = now()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await lifespan(receive, send, anyio.lowlevel.checkpoint, self._stop)
            case "http":
                await self._http(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})

    async def _stop(self) -> None:
        await self._client.aclose()
        self._tape.close()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, limit=self._max_body_bytes, hosts=self._hosts)
        except RequestError as error:
            await refuse_error(send, error)
            return
        if body is None:
            return
        passing = _Passing(scope, body, self._now, self._now() - self._begin)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_left, receive, tasks.cancel_scope)
                await passing.through(self._client, send)
                tasks.cancel_scope.cancel()
        finally:
            if (kept := passing.exchange()) is not None:
                self._tape.put(kept)


class _Passing:
    """One request on its way."""

    def __init__(self, scope: Scope, body: bytes, now: Callable[[], float], at: float) -> None:
        self._scope, self._body, self._now, self._at = scope, body, now, at
        self._begin = now()
        self._status: int | None = None
        self._answer: Pairs = []
        self._head_at = self._end_at = 0.0
        self._pieces: list[tuple[float, bytes]] = []
        self._ended: Literal["complete", "cut", "left"] = "left"

    async def through(self, client: httpx2.AsyncClient, send: Send) -> None:
        try:
            async with client.stream(
                self._scope["method"], _target(client, self._scope), headers=_upward(self._scope), content=self._body
            ) as answer:
                await self._relay(answer, send)
        except httpx2.HTTPError as error:
            self._end_at = self._now() - self._begin
            self._ended = "cut"
            if self._status is None:
                await refuse(send, 502, f"The upstream did not respond: {type(error).__name__}.")
            # Else the answer stays unfinished, as the upstream's is: the server closes the connection.

    async def _relay(self, answer: httpx2.Response, send: Send) -> None:
        self._head_at = self._now() - self._begin
        self._status = answer.status_code
        named = _named(answer.headers.get("connection", ""))
        self._answer = [pair for pair in answer.headers.raw if pair[0].lower().decode("latin-1") not in HOP | named]
        await send({"type": "http.response.start", "status": self._status, "headers": self._answer})
        async for raw in answer.aiter_raw():
            self._pieces.append((self._now() - self._begin, raw))
            await send({"type": "http.response.body", "body": raw, "more_body": True})
        self._end_at = self._now() - self._begin
        self._ended = "complete"
        await send({"type": "http.response.body"})

    def exchange(self) -> Exchange | None:
        """None if the upstream said nothing."""
        if self._status is None:
            return None
        scope = self._scope
        return Exchange(
            at=self._at,
            method=scope["method"],
            path=sent_path(scope),
            query=kept_query(scope["query_string"].decode("latin-1")),
            headers=kept_headers(_texts(scope["headers"])),
            body=data_of(self._body),
            status=self._status,
            answer_headers=kept_answer_headers(_texts(self._answer)),
            head_at=self._head_at,
            pieces=[Piece(at, data_of(raw)) for at, raw in self._pieces],
            end_at=self._end_at or self._now() - self._begin,
            ended=self._ended,
        )


def _target(client: httpx2.AsyncClient, scope: Scope) -> httpx2.URL:
    """Beneath the upstream, whatever the path looks like: it can name no other host."""
    base = client.base_url
    path = (base.raw_path.rstrip(b"/") + b"/" + sent_path(scope).encode("latin-1").lstrip(b"/")).rstrip(b"?")
    query = scope["query_string"]
    return base.copy_with(raw_path=path + (b"?" + query if query else b""))


def _upward(scope: Scope) -> Pairs:
    raw: Pairs = list(scope["headers"])
    named = {name for key, value in raw if key == b"connection" for name in _named(value.decode("latin-1"))}
    without = HOP | named | {"host", "accept-encoding", "content-length"}
    return [*(pair for pair in raw if pair[0].decode("latin-1") not in without), (b"accept-encoding", b"identity")]


def _named(connection: str) -> set[str]:
    """Headers that are for this hop alone, as it says."""
    return {name.strip().lower() for name in connection.split(",") if name.strip()}


def _texts(pairs: Pairs) -> list[tuple[str, str]]:
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in pairs]
