"""The writer of an API whose answers are never streamed."""

from __future__ import annotations

from ...core.errors import DragomanError
from ...core.events import Event


class WholeWriter:
    """The streaming half of `Writer`, for readers that reject `stream`."""

    end = b""
    keepalive = b""

    def feed(self, event: Event) -> bytes:
        raise AssertionError(f"this API has no streams: {event}")

    def render_error(self, error: DragomanError) -> bytes:
        raise AssertionError("this API has no streams") from error
