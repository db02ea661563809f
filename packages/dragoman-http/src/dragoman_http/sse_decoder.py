"""An incremental decoder of server-sent events: bytes to the `data` of complete events."""

from __future__ import annotations

from .errors import InvalidResponse

MAX_EVENT = 16 * 1024 * 1024
"""Limit of one event, bytes. A chunk is small, but the first may list the ids of a long
prompt.
"""


_BOM = b"\xef\xbb\xbf"
_WARNINGS_COMMENT = b": dragoman_warnings "


class SseDecoder:
    """An incremental decoder of server-sent events: bytes to the `data` of complete
    events.

    Ids, retry times and comments are skipped, except for the comment with the server's
    warnings. A line of bare JSON counts as an event too, so that JSON Lines are read in
    the same way.

    names: the names of the events that `feed` returned last; empty for one without.
    warnings: the JSON array in the last comment with a server's warnings; empty before
        the first.

    Raises InvalidResponse for an event above the limit. The time is linear in the bytes,
    even if they arrive one by one.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event
        self._partial_line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._name = ""
        self._is_bare = False
        self.names: list[str] = []
        self.warnings = b""

    def feed(self, data: bytes) -> list[bytes]:
        # The common case: whole events of one line. A CR ends lines too.
        if (
            data[:6] == b"data: "
            and data[-2:] == b"\n\n"
            and not self._size
            and not self._after_cr
            and b"\r" not in data
            and len(data) <= self._max_event
        ):
            events = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(events) and b"" not in events:
                self.names = [""] * len(events)
                return events
        events = list[bytes]()
        self.names = []
        # A CRLF may be split between two pieces of the body.
        remaining = data[1:] if self._after_cr and data.startswith(b"\n") else data
        self._after_cr = data.endswith(b"\r") or (self._after_cr and not data)
        # SSE lines end with CR, LF or CRLF only. `bytes.splitlines` splits at these;
        # `str.splitlines` at others too.
        for piece in remaining.splitlines(keepends=True):
            self._size += len(piece)
            if self._size > self._max_event:
                raise InvalidResponse(f"an event has more than {self._max_event} bytes")
            if not piece.endswith((b"\n", b"\r")):
                self._partial_line.append(piece)
                continue
            line = b"".join((*self._partial_line, piece.rstrip(b"\r\n"))).removeprefix(_BOM)
            self._partial_line.clear()
            self._read_line(line, events)
        return events

    def _read_line(self, line: bytes, events: list[bytes]) -> None:
        """Read a line, and append the event that it ends."""
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif self._is_bare and line:
            self._data.append(line)
        elif line.startswith(b"{"):
            # Some gateways send an error, or all of the answer, as bare JSON.
            self._is_bare = not line.endswith(b"}")
            if not self._is_bare:
                self._end_event(events)
            self._data.append(line)
            if not self._is_bare:
                self._end_event(events)
        elif line.startswith(b"event:"):
            self._name = line[6:].strip().decode("utf-8", "replace")
        elif not line:
            self._end_event(events)
        elif line.startswith(_WARNINGS_COMMENT):
            self.warnings = line[len(_WARNINGS_COMMENT) :]

    def _end_event(self, events: list[bytes]) -> None:
        """Append the event, unless it has no data: those are keepalives."""
        if event := b"\n".join(self._data):
            events.append(event)
            self.names.append(self._name)
        self._data = []
        self._name = ""
        self._is_bare = False
        self._size = 0
