"""One request and its response, as an ASGI application sees them: `receive`, `send`, and who watches for the leaving.

It outlives neither: once the response is complete, or the client gone, nothing that an application still does with it
reaches the connection, which may be at its next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast
from urllib.parse import unquote

from starlette.types import Message, Scope

from .bell import Bell
from .head import Head
from .leaving import EXTENSION
from .response import Framing, UntilClose, open_response
from .shared import Shared, log
from .sockets import Address

FAILED = b"Internal Server Error"


class Line(Protocol):
    """A connection, as an exchange needs it. drained: rings when there is room again, and when the client is gone."""

    transport: asyncio.Transport
    client: Address | None
    server: Address | None
    is_secure: bool
    is_full: bool
    drained: Bell

    def wants_body(self) -> None: ...
    def answered(self, *, keeps_alive: bool) -> None: ...
    def cut(self, *, hard: bool) -> None:
        """Close it: the response is not complete, and must not look so. hard: its end is the connection's."""
        ...


class Exchange:
    """keeps_alive: whether another may follow on its connection; a server that ends says no."""

    __slots__ = (
        "_bell", "_framing", "_is_complete", "_is_heard", "_is_whole", "_line", "_method", "_on_leaving", "_pieces",
        "_shared", "_version", "_waits_for_word", "keeps_alive", "unread",
    )  # fmt: skip

    def __init__(self, line: Line, shared: Shared, head: Head) -> None:
        self._line: Line | None = line
        self._shared = shared
        self._method, self._version = head.method, head.version
        self.keeps_alive = head.keeps_alive
        self._waits_for_word = head.expects_continue and head.body is not None
        self._pieces: list[bytes] | None = None
        self.unread = 0
        self._is_whole = head.body is None
        self._is_heard = self._is_complete = False
        self._framing: Framing | None = None
        self._bell = Bell()
        self._on_leaving: Callable[[], object] | None = None

    @property
    def has_begun(self) -> bool:
        return self._framing is not None

    @property
    def is_held_back(self) -> bool:
        """Whether the client waits for a word before it sends the body."""
        return self._waits_for_word

    def start(self, line: Line, head: Head) -> None:
        """The application's own coroutine is the task: nothing is resumed above it for every token."""
        # Not that of whoever is running: it may be the application, at the end of the request before.
        context = self._shared.context.copy()
        answering = cast(Coroutine[Any, Any, None], self._shared.app(self._scope(line, head), self.receive, self.send))
        task = self._shared.loop.create_task(answering, context=context)
        self._shared.state.tasks.add(task)
        task.add_done_callback(self._ended, context=context)

    def _scope(self, line: Line, head: Head) -> Scope:
        root = self._shared.config.root_path
        path = head.path.decode("ascii")
        return {
            "type": "http",
            "asgi": self._shared.asgi,
            "http_version": self._version,
            "server": line.server,
            "client": line.client,
            "scheme": "https" if line.is_secure else "http",
            "method": self._method,
            "root_path": root,
            "path": root + (unquote(path) if "%" in path else path),
            "raw_path": root.encode("ascii") + head.path,
            "query_string": head.query,
            "headers": head.headers,
            "state": dict(self._shared.lifespan),
            "extensions": {EXTENSION: self.watch},
        }

    # What the connection tells.

    def feed(self, piece: bytes, *, is_whole: bool) -> None:
        """A piece of the body."""
        if piece:
            self._waits_for_word = False
            self._pieces = self._pieces or []
            self._pieces.append(piece)
            self.unread += len(piece)
        self._is_whole = is_whole
        self._bell.ring()

    def leave(self) -> None:
        """The client is gone, or what it sends is of no use."""
        if self._line is None:
            return
        self._close()
        if self._on_leaving is not None:
            self._shared.loop.call_soon(self._tell)

    def fail(self) -> None:
        """What was begun cannot be ended: no end is better than a false one."""
        line = self._line
        self.leave()
        if line is not None:
            line.cut(hard=isinstance(self._framing, UntilClose))

    def _close(self) -> None:
        self._line = None
        self._pieces = None
        self._bell.ring()

    # What the application asks.

    def watch(self, callback: Callable[[], object] | None, /) -> None:
        """`leaving.Watch`."""
        is_gone = self._line is None and not self._is_complete
        self._on_leaving = callback
        if is_gone and callback is not None:
            self._shared.loop.call_soon(self._tell)

    def _tell(self) -> None:
        callback, self._on_leaving = self._on_leaving, None
        if callback is not None:
            callback()

    async def receive(self) -> Message:
        line = self._line
        if self._waits_for_word and line is not None:
            self._waits_for_word = False
            line.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while self._line is not None:
            if not self._is_heard and (self._pieces or self._is_whole):
                return self._heard()
            if not self._is_whole:
                self._line.wants_body()
            await self._bell.wait()
        return {"type": "http.disconnect"}

    def _heard(self) -> Message:
        body = b"".join(self._pieces or ())
        self._pieces, self.unread, self._is_heard = None, 0, self._is_whole
        return {"type": "http.request", "body": body, "more_body": not self._is_whole}

    async def send(self, message: Message) -> None:
        """Raises RuntimeError for what no response can be made of."""
        line = self._line
        while line is not None and line.is_full:
            await line.drained.wait()
            line = self._line
        if line is None:
            if self._is_complete:
                raise RuntimeError(f"Unexpected ASGI message '{message['type']}': the response is complete.")
            return
        framing = self._framing
        if framing is None:
            self._open(line, message)
            return
        if message["type"] != "http.response.body":
            raise RuntimeError(f"Expected ASGI message 'http.response.body', but got '{message['type']}'.")
        more = message.get("more_body", False)
        try:
            said = framing.frame(message.get("body", b""), more)
        except RuntimeError:
            self.fail()
            raise
        if said:
            line.transport.write(said)
        if not more:
            self._complete(line)

    def _open(self, line: Line, message: Message) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"Expected ASGI message 'http.response.start', but got '{message['type']}'.")
        opening = open_response(
            message["status"],
            message.get("headers", ()),
            self._shared.header_lines,
            method=self._method,
            version=self._version,
            # Who still waits for a word may send the body, or another request: nobody can tell them apart.
            keeps_alive=self.keeps_alive and not self._waits_for_word,
        )
        self._framing, self.keeps_alive = opening.framing, opening.keeps_alive
        line.transport.write(opening.head)

    def _complete(self, line: Line) -> None:
        self._is_complete, self._on_leaving = True, None
        self._close()
        line.answered(keeps_alive=self.keeps_alive)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The application has returned, or raised."""
        self._shared.state.tasks.discard(task)
        line, self._on_leaving = self._line, None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not (task.cancelled() and line is None):
            log.error("Exception in ASGI application", exc_info=error)
        elif line is not None:
            log.error("ASGI callable returned without completing response.")
        if line is not None and self.has_begun:
            self.fail()
        elif line is not None:
            self.keeps_alive = False
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(FAILED))]
            self._open(line, {"type": "http.response.start", "status": 500, "headers": headers})
            if self._method != "HEAD":
                line.transport.write(FAILED)
            self._complete(line)
