"""Writes exchanges to a file in a thread of its own, so that no stream waits for the disk."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

from .cassette import VERSION, CassetteHeader, RecordedExchange, encode_line


class CassetteWriter:
    """Appends exchanges to a file; each is flushed before the next one is written. Must be closed."""

    def __init__(self, path: Path, upstream: str) -> None:
        self._file = path.open("ab")
        self._queue: SimpleQueue[RecordedExchange | None] = SimpleQueue()
        self._file.write(encode_line(CassetteHeader(VERSION, upstream)))
        self._thread = threading.Thread(target=self._write_queued, name="recording", daemon=True)
        self._thread.start()

    def put(self, exchange: RecordedExchange) -> None:
        """Queue an exchange; never blocks."""
        self._queue.put(exchange)

    def close(self) -> None:
        """Write all queued exchanges and close the file."""
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    def _write_queued(self) -> None:
        while (exchange := self._queue.get()) is not None:
            self._file.write(encode_line(exchange))
            self._file.flush()
