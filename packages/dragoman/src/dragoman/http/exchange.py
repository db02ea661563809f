"""One request with its response, as an ASGI application sees them.

Once the response is complete or the client has disconnected, calls of the application
no longer reach the connection, which may be handling its next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, cast
from urllib.parse import unquote

from starlette.types import Message, Scope

from . import asgi_extensions
from .request_head import RequestHead
from .response_head import CloseDelimitedFraming, Framing, build_response_head
from .server_context import ServerContext, log
from .sockets import Address
from .wakeup import Wakeup

INTERNAL_ERROR_BODY = b"Internal Server Error"


class ExchangeConnection(Protocol):
    """The interface of a connection that an exchange uses.

    writable: notified when the write buffer has room again, and on disconnect.
    """

    transport: asyncio.Transport
    client: Address | None
    server: Address | None
    is_secure: bool
    is_write_paused: bool
    writable: Wakeup

    def resume_body(self) -> None: ...
    def on_response_complete(self, *, keeps_alive: bool) -> None: ...
    def abort(self, *, hard: bool) -> None:
        """Close the connection with an incomplete response.

        hard: reset it, because the end of the connection would mark the end of the
            body.
        """
        ...


class HttpExchange:
    """One request and its response.

    keeps_alive: whether another request may follow on the connection; false during
        shutdown.
    can_write: implements `asgi_extensions.DirectResponse.can_write`. An attribute, as
        it is read for every token and seldom changes.
    """

    __slots__ = (
        "_body_chunks",
        "_body_complete",
        "_body_delivered",
        "_connection",
        "_context",
        "_disconnect_callback",
        "_expects_continue",
        "_framing",
        "_is_complete",
        "_method",
        "_pending",
        "_version",
        "_wakeup",
        "can_write",
        "keeps_alive",
        "unread_bytes",
    )  # fmt: skip

    def __init__(
        self, connection: ExchangeConnection, context: ServerContext, head: RequestHead
    ) -> None:
        self._connection: ExchangeConnection | None = connection
        self._context = context
        self._method = head.method
        self._version = head.version
        self.keeps_alive = head.keeps_alive
        self._expects_continue = head.expects_continue and head.body is not None
        self._body_chunks: list[bytes] | None = None
        self.unread_bytes = 0
        self._body_complete = head.body is None
        self._body_delivered = self._is_complete = False
        self._framing: Framing | None = None
        self._pending = b""
        self.can_write = False
        self._wakeup = Wakeup()
        self._disconnect_callback: Callable[[], object] | None = None

    @property
    def has_started(self) -> bool:
        return self._framing is not None

    @property
    def is_awaiting_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body (RFC
        9110, 10.1.1).
        """
        return self._expects_continue

    def start(self, connection: ExchangeConnection, head: RequestHead) -> None:
        """Run the application's coroutine directly as the task: no wrapper is resumed
        for every token.
        """
        root_path = self._context.config.root_path
        path = head.path.decode("ascii")
        scope: Scope = {
            "type": "http",
            "asgi": self._context.asgi,
            "http_version": self._version,
            "server": connection.server,
            "client": connection.client,
            "scheme": "https" if connection.is_secure else "http",
            "method": self._method,
            "root_path": root_path,
            "path": root_path + (unquote(path) if "%" in path else path),
            "raw_path": root_path.encode("ascii") + head.path,
            "query_string": head.query,
            "headers": head.headers,
            # A copy for each request, as the ASGI specification demands ("Lifespan
            # State").
            "state": dict(self._context.lifespan_state),
            "extensions": {
                asgi_extensions.DISCONNECT_EXTENSION: self.on_disconnect,
                asgi_extensions.DIRECT_WRITE_EXTENSION: self,
            },
        }
        coroutine = cast(
            Coroutine[Any, Any, None], self._context.app(scope, self.receive, self.send)
        )
        # Not the current context: that may be the application's, at the end of the
        # previous request.
        context = self._context.task_context.copy()
        task = self._context.loop.create_task(coroutine, context=context)
        self._context.state.tasks.add(task)
        task.add_done_callback(self._on_task_done, context=context)

    # Callbacks of the connection.

    def feed(self, chunk: bytes, *, is_complete: bool) -> None:
        """Add a chunk of the body."""
        if chunk:
            self._expects_continue = False
            self._body_chunks = self._body_chunks or []
            self._body_chunks.append(chunk)
            self.unread_bytes += len(chunk)
        self._body_complete = is_complete
        self._wakeup.notify_all()

    def disconnect(self) -> None:
        """Detach from the connection: the client has disconnected, or its input is
        invalid.
        """
        if self._connection is None:
            return
        self._detach()
        # In its own iteration of the event loop, as `OnDisconnect` promises: the
        # callback may cancel the running task.
        if self._disconnect_callback is not None:
            self._context.loop.call_soon(self._notify_disconnect)

    def fail(self) -> None:
        """Abort a started response, so that the client does not take it for complete."""
        # The head may still be held back: without it the client would not see that a
        # response had begun.
        self.flush()
        connection = self._connection
        self.disconnect()
        if connection is not None:
            connection.abort(hard=isinstance(self._framing, CloseDelimitedFraming))

    def set_write_paused(self, is_paused: bool) -> None:
        """Stop or resume direct writes: the client has stopped or begun to read."""
        self.can_write = not is_paused and self._framing is not None

    def _detach(self) -> None:
        self._connection = None
        self.can_write = False
        self._body_chunks = None
        self._wakeup.notify_all()

    # Calls of the application.

    def on_disconnect(self, callback: Callable[[], object] | None, /) -> None:
        """Implements `asgi_extensions.OnDisconnect`."""
        is_disconnected = self._connection is None and not self._is_complete
        self._disconnect_callback = callback
        if is_disconnected and callback is not None:
            self._context.loop.call_soon(self._notify_disconnect)

    def _notify_disconnect(self) -> None:
        callback = self._disconnect_callback
        self._disconnect_callback = None
        if callback is not None:
            callback()

    async def receive(self) -> Message:
        connection = self._connection
        # Sent only now: if the application rejects the request by its headers, the
        # client never sends the body.
        if self._expects_continue and connection is not None:
            self._expects_continue = False
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while self._connection is not None:
            if not self._body_delivered and (self._body_chunks or self._body_complete):
                body = b"".join(self._body_chunks or ())
                self._body_chunks = None
                self.unread_bytes = 0
                self._body_delivered = self._body_complete
                return {"type": "http.request", "body": body, "more_body": not self._body_complete}
            if not self._body_complete:
                self._connection.resume_body()
            await self._wakeup.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Handle an ASGI message of the application.

        Raises:
            RuntimeError: the message is invalid in this state.
        """
        connection = self._connection
        # Backpressure: while the client does not read, the application waits, and so
        #     does the engine's stream.
        while connection is not None and connection.is_write_paused:
            await connection.writable.wait()
            connection = self._connection
        # As in other ASGI servers, messages after a disconnect are dropped: the
        # application may not have noticed it.
        if connection is None:
            if self._is_complete:
                raise RuntimeError(
                    f"Unexpected ASGI message '{message['type']}': the response is complete."
                )
            return
        framing = self._framing
        if framing is None:
            self._start_response(message)
            return
        if message["type"] != "http.response.body":
            raise RuntimeError(
                f"Expected ASGI message 'http.response.body', but got '{message['type']}'."
            )
        more_body = message.get("more_body", False)
        self._write_piece(connection, framing, message.get("body", b""), more_body)
        if not more_body:
            self._complete(connection)

    def write(self, body: bytes) -> None:
        """Implements `asgi_extensions.DirectResponse.write`."""
        connection = self._connection
        framing = self._framing
        if connection is None or framing is None:
            return
        if self._pending:
            self._write_piece(connection, framing, body, more_body=True)
        elif data := framing.frame(body, True):
            connection.transport.write(data)

    def hold(self, body: bytes) -> None:
        """Implements `asgi_extensions.DirectResponse.hold`."""
        framing = self._framing
        if self._connection is not None and framing is not None:
            self._pending += framing.frame(body, True)

    def flush(self) -> None:
        """Implements `asgi_extensions.DirectResponse.flush`."""
        pending = self._pending
        self._pending = b""
        if pending and self._connection is not None:
            self._connection.transport.write(pending)

    @property
    def can_respond(self) -> bool:
        """Implements `asgi_extensions.DirectResponse.can_respond`."""
        connection = self._connection
        return connection is not None and self._framing is None and not connection.is_write_paused

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Implements `asgi_extensions.DirectResponse.begin`."""
        if self._connection is not None:
            self._build_head(status, headers)

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Implements `asgi_extensions.DirectResponse.respond`."""
        connection = self._connection
        if connection is not None:
            framing = self._build_head(status, headers)
            self._write_piece(connection, framing, body, more_body=False)
            self._complete(connection)

    def _write_piece(
        self, connection: ExchangeConnection, framing: Framing, body: bytes, more_body: bool
    ) -> None:
        try:
            data = framing.frame(body, more_body)
        except RuntimeError:
            self.fail()
            raise
        if self._pending:
            # One packet and one system call instead of two.
            data = self._pending + data
            self._pending = b""
        if data:
            connection.transport.write(data)

    def _start_response(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(
                f"Expected ASGI message 'http.response.start', but got '{message['type']}'."
            )
        self._build_head(message["status"], message.get("headers", ()))
        # Held back for one iteration of the event loop: the first piece of the body
        # nearly always follows at once, and one system call writes both.
        self._context.loop.call_soon(self.flush)

    def _build_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Framing:
        """Build the head, which is written with the first piece of the body."""
        response_head = build_response_head(
            status,
            headers,
            self._context.header_lines,
            method=self._method,
            version=self._version,
            # A client that awaits 100 Continue may send the body or a new request; the
            # server cannot distinguish them.
            keeps_alive=self.keeps_alive and not self._expects_continue,
        )
        self._framing = response_head.framing
        self.can_write = self._connection is not None and not self._connection.is_write_paused
        self.keeps_alive = response_head.keeps_alive
        self._pending = response_head.head
        return response_head.framing

    def _complete(self, connection: ExchangeConnection) -> None:
        self._is_complete = True
        self._disconnect_callback = None
        self._detach()
        connection.on_response_complete(keeps_alive=self.keeps_alive)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Handle the end of the application's task: log an error and complete the
        response if it is incomplete.
        """
        self._context.state.tasks.discard(task)
        connection = self._connection
        self._disconnect_callback = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        # A task that was cancelled because the client disconnected is not an error of
        # the application.
        if error is not None and not (task.cancelled() and connection is None):
            log.error("Exception in ASGI application", exc_info=error)
        elif connection is not None:
            log.error("ASGI callable returned without completing response.")
        if connection is not None and self.has_started:
            self.fail()
        elif connection is not None:
            self.keeps_alive = False
            headers = [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", b"%d" % len(INTERNAL_ERROR_BODY)),
            ]
            self._start_response({"type": "http.response.start", "status": 500, "headers": headers})
            assert self._framing is not None
            self._write_piece(connection, self._framing, INTERNAL_ERROR_BODY, more_body=False)
            self._complete(connection)
