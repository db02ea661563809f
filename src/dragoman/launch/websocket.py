"""uvicorn's WebSockets, which leave it to the application when they end. Knows nothing of what is said on them."""

from __future__ import annotations

from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ..serving.responses.websocket import FINISH_MESSAGE
from .shutdown import LongLived


class WebSocket(WebSocketsSansIOProtocol, LongLived):
    """uvicorn itself closes one at once when the server stops, in the midst of an answer."""

    close_timeout: float

    def shutdown(self) -> None:
        """Asks whoever answers on it to come to an end; a client that does not answer its closing is not waited for."""
        if not self.handshake_complete or self.close_sent:
            super().shutdown()
            return
        self.close_timeout = 1.0
        self.queue.put_nowait(cast("Any", {"type": FINISH_MESSAGE}))
