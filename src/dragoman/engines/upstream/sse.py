"""Incremental decoder of server-sent events. Pure."""

from __future__ import annotations

from ...core.errors import EngineError

MAX_EVENT = 16 * 1024 * 1024
"""Limit of one event, bytes. A chunk is small, but the first may list the ids of a long prompt."""
_WARNINGS_COMMENT = b": dragoman_warnings "


class SseDecoder:
    """Decodes bytes to the data of complete events. Names, ids and other comments than its warnings are skipped.

    warnings: the JSON array of the last comment with a server's warnings; empty before.

    Raises EngineError for an event above the limit. The work is linear in the bytes, also for one byte at a time.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event
        self._partial_line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self.warnings = b""

    def feed(self, data: bytes) -> list[bytes]:
        is_one_event = data.startswith(b"data: ") and data.endswith(b"\n\n") and data.find(b"\n") == len(data) - 2
        # The common case: one whole event of one line. A CR ends lines too.
        if is_one_event and not self._size and not self._after_cr and b"\r" not in data:
            return [data[6:-2]]
        events: list[bytes] = []
        rest = data[1:] if self._after_cr and data.startswith(b"\n") else data
        self._after_cr = data.endswith(b"\r")
        # SSE lines end with CR, LF or CRLF only. `bytes.splitlines` splits at these; `str.splitlines` at others too.
        for line in rest.splitlines(keepends=True):
            self._size += len(line)
            if self._size > self._max_event:
                raise EngineError(f"The upstream sent an event of more than {self._max_event} bytes.")
            if line.endswith((b"\n", b"\r")):
                self._feed_line(b"".join((*self._partial_line, line.rstrip(b"\r\n"))), events)
                self._partial_line.clear()
            else:
                self._partial_line.append(line)
        return events

    def _feed_line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif not line:
            if self._data:
                events.append(b"\n".join(self._data))
            self._data = []
            self._size = 0
        elif line.startswith(_WARNINGS_COMMENT):
            self.warnings = line[len(_WARNINGS_COMMENT) :]
