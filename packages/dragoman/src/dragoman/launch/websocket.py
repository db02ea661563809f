"""uvicorn's WebSocket protocol, with a graceful shutdown by the application.

Bytes of an incomplete message are counted as they arrive, and the message has a
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from ..http.limits import HttpLimits
from ..http.long_lived import LongLived
from ..serving.routes.responses.websocket import FINISH_MESSAGE, PENDING

FRAGMENT = 64
"""Overhead in bytes that is counted per fragment, since an empty one takes memory too.
"""
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class WebSocket(WebSocketsSansIOProtocol, LongLived):
    """A WebSocket connection with graceful shutdown: uvicorn would close it in the
    middle of a response.
    """

    limits = HttpLimits()
    close_timeout: float
    _fragments = 0
    _pending = 0
    _pending_at_deadline = 0
    """`_pending` when the deadline was last set."""
    _count: Callable[[int], bool] | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.limits.head_timeout, self._on_handshake_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._discard_message()
        super().connection_lost(exc)

    async def run_asgi(self) -> None:
        cast("dict[str, Any]", self.scope)["extensions"][PENDING] = self._watch_pending
        await super().run_asgi()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated:
            # The head was passed to uvicorn completely, so this handshake is malformed:
            # uvicorn would neither respond nor close the connection.
            self.transport.write(_BAD_REQUEST)
            self.transport.close()
            return
        self._note_pending()

    def handle_text(self, event: Frame) -> None:
        self._fragments = 0 if event.fin else len(event.data) + FRAGMENT
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._fragments = 0 if event.fin else len(event.data) + FRAGMENT
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._fragments = 0 if event.fin else self._fragments + len(event.data) + FRAGMENT
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        super().send_receive_event_to_app()
        self._end_deadline()

    async def send(self, message: Any) -> None:  # noqa: ANN401 - one of many TypedDicts
        await super().send(message)
        if message["type"] == "websocket.accept":
            self._end_deadline()
            # Bytes that came with the handshake were not counted, since it was not
            # complete.
            self._note_pending()

    def shutdown(self) -> None:
        """Let the application finish the current response. Afterwards the close
        handshake has one second.
        """
        if not self.handshake_complete or self.close_sent:
            # No response is in progress.
            super().shutdown()
            return
        self.close_timeout = 1.0
        self.queue.put_nowait(cast("Any", {"type": FINISH_MESSAGE}))

    def _watch_pending(self, count: Callable[[int], bool]) -> None:
        """Set the callback that limits incomplete messages.

        count: called on every change with the bytes of the incomplete message;
            returning False rejects the message.
        """
        self._count = count
        self._pending = 0
        self._note_pending()

    def _note_pending(self) -> None:
        pending = len(self.conn.reader.buffer) + self._fragments if self.handshake_complete else 0
        if pending == self._pending:
            return
        self._pending = pending
        if self._count is not None and not self._count(pending):
            self._fail(1013, "the server buffers too many incomplete messages")
        elif not pending:
            self._end_deadline()
        elif self._deadline is None:
            self._begin_deadline()

    def _begin_deadline(self) -> None:
        self._pending_at_deadline = self._pending
        self._deadline = self.loop.call_later(self.limits.body, self._on_message_timeout)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_handshake_timeout(self) -> None:
        self._deadline = None
        if not self.handshake_complete:
            self.transport.abort()

    def _on_message_timeout(self) -> None:
        """Close the connection if the message is slower than the minimum rate, unless
        reading is paused.
        """
        self._deadline = None
        if (
            self.read_paused
            or self._pending - self._pending_at_deadline >= self.limits.body_rate * self.limits.body
        ):
            self._begin_deadline()
        elif self._pending:
            self._fail(1008, "the message took too long")

    def _fail(self, code: int, reason: str) -> None:
        if self.transport.is_closing():
            return
        if self.close_sent:
            # After the close frame, the failure can no longer be reported to the
            # client.
            self.transport.abort()
            return
        self.conn.fail(code, reason)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self._discard_message()
        self.transport.close()

    def _discard_message(self) -> None:
        """Discard an incomplete message."""
        self._end_deadline()
        self._fragments = 0
        self.frames = []
        self.conn.reader.buffer.clear()
