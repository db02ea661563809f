"""The request log: a JSON line for each request to a model, without its prompt.

A thread writes the lines from a queue, so that requests never wait for the disk.
"""

from __future__ import annotations

import logging
import queue
import threading
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError
from ..core.events import (
    ChoiceFinished,
    Event,
    Finished,
    PromptTokens,
    Started,
    TextDelta,
    get_answer_tokens,
)
from .rotated_file import RotatedFile

log = logging.getLogger(__name__)

QUEUE_SIZE = 8192
"""Maximum number of queued lines; more are dropped, and the server's log reports how
many.
"""


CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that closed the connection."""


class RequestLogLine(Struct):
    """One request. `dragoman calibrate` reads these field names.

    arrival_s: Unix time of the request's arrival; the other times are seconds since
        then.
    status: the HTTP status, or the one that an error after the headers would have had.
    error: a code or exception type, never a message: that could quote a prompt.
    finish_reasons: one per finished choice, in order of finishing.
    key: name of the API key, or part of its digest; None without keys.
    client: the client's address; None over a Unix socket.
    """

    arrival_s: float
    request_id: str
    route: str
    model: str
    status: int = CLIENT_CLOSED_REQUEST
    error: str | None = None
    finish_reasons: list[str] = []
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    queue_s: float | None = None
    ttft_s: float | None = None
    latency_s: float | None = None
    key: str | None = None
    client: str | None = None

    def record(self, batch: list[Event], elapsed: float) -> None:
        """Update the line from a batch of events.

        elapsed: seconds since arrival.
        """
        for event in batch:
            # The most frequent first, and without patterns, which cost more.
            if type(event) is TextDelta:
                # The time to first token is that of the answer's first event.
                if self.ttft_s is None:
                    self.ttft_s = elapsed
                self.output_tokens += len(event.tokens)
            elif isinstance(event, Finished):
                usage = event.usage
                if usage.completion is not None:
                    self.output_tokens = usage.completion
                self.status = 200
                # Many upstreams report the prompt's tokens only at the end.
                self.prompt_tokens = usage.prompt or self.prompt_tokens
                self.cached_tokens = self.cached_tokens if usage.cached is None else usage.cached
            elif isinstance(event, Started):
                self.prompt_tokens = event.prompt_tokens
                self.cached_tokens = event.cached_tokens
                self.queue_s = elapsed
            elif not isinstance(event, PromptTokens):
                self.ttft_s = elapsed if self.ttft_s is None else self.ttft_s
                self.output_tokens += len(get_answer_tokens(event))
                if isinstance(event, ChoiceFinished):
                    self.finish_reasons.append(event.reason.value)

    def record_failure(self, error: Exception) -> None:
        is_known = isinstance(error, DragomanError)
        self.status = error.status if is_known else 500
        self.error = (error.code if is_known else None) or type(error).__name__


class RequestLog:
    """The log file and the thread that writes it.

    It can be rotated by renaming, since a file that is no longer at its path is opened
    again, and by copying and truncating, since lines are appended.
    """

    def __init__(self, path: Path, queue_size: int = QUEUE_SIZE) -> None:
        """Raise OSError if the file cannot be opened for writing."""
        self._file = RotatedFile(path)
        self._lines: queue.Queue[RequestLogLine | None] = queue.Queue(queue_size)
        self._dropped = 0
        """Total number of dropped lines; only `put` changes it."""
        self._thread = threading.Thread(target=self._write, name="request-log", daemon=True)
        self._thread.start()

    def put(self, line: RequestLogLine) -> None:
        try:
            # Never blocks: a slow disk costs lines, not tokens.
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write all queued lines, then close."""
        # None ends the thread after the lines before it. Unlike `put`, this waits until
        # the queue has room.
        self._lines.put(None)
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        encode = msgspec.json.Encoder().encode
        reported = 0
        while (line := self._lines.get()) is not None:
            try:
                self._file.write(encode(line) + b"\n")
            except OSError as error:
                log.error("the request log cannot be written: %s", error)
            if self._lines.empty():
                reported = self._warn_dropped(reported)
        self._warn_dropped(reported)

    def _warn_dropped(self, reported: int) -> int:
        """Log the number of newly dropped lines; return the new total.

        reported: the total that was logged before.
        """
        dropped = self._dropped
        if dropped > reported:
            log.warning("the request log is too slow: %d lines were dropped", dropped - reported)
        return dropped
