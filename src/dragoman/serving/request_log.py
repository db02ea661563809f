"""A file with a line of JSON for each request that generates: when, for what, how much, how fast. Never a prompt.

The lines are written by a thread of their own; whoever answers only puts them into a queue, and never waits for a disk.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError
from ..core.events import ChoiceFinished, Event, Finished, PromptTokens, Started, get_answer_tokens

log = logging.getLogger(__name__)

QUEUE_SIZE = 8192
"""Lines that may wait for the disk; more are dropped, and the server's log says how many."""

CLIENT_CLOSED_REQUEST = 499
"""As nginx has it: the client went away."""


class RequestLogLine(Struct):
    """One request, as it is written. Its names are those by which `dragoman calibrate` knows them.

    arrival_s: Unix time of its admission; the other times are seconds from then on. status: the HTTP status, or what it
    would have been of an answer that had begun. error: a code or a kind, never a message: that could quote a prompt.
    finish_reasons: one a choice that has ended, in that order.
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

    def record(self, batch: list[Event], elapsed: float) -> None:
        """since: seconds from the arrival to this batch."""
        for event in batch:
            match event:
                case Started(prompt_tokens, cached_tokens):
                    self.prompt_tokens, self.cached_tokens, self.queue_s = prompt_tokens, cached_tokens, elapsed
                case Finished(usage):
                    self.output_tokens, self.status = usage.completion, 200
                case PromptTokens():
                    pass
                case _:
                    self.ttft_s = elapsed if self.ttft_s is None else self.ttft_s
                    self.output_tokens += len(get_answer_tokens(event))
                    if isinstance(event, ChoiceFinished):
                        self.finish_reasons.append(event.reason.value)

    def failed(self, error: Exception) -> None:
        is_known = isinstance(error, DragomanError)
        self.status = error.status if is_known else 500
        self.error = (error.code if is_known else None) or type(error).__name__


class RequestLog:
    """The file. It is only ever appended to, so that it may be rotated by copying and truncating."""

    def __init__(self, path: Path, queue_size: int = QUEUE_SIZE) -> None:
        """Raises OSError where the file cannot be written."""
        self._file = path.open("ab", buffering=0)
        self._lines: queue.Queue[RequestLogLine | None] = queue.Queue(queue_size)
        self._dropped = 0
        """Since the beginning; only `put` changes it."""
        self._thread = threading.Thread(target=self._write, name="request-log", daemon=True)
        self._thread.start()

    def put(self, line: RequestLogLine) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Returns when all is written."""
        self._lines.put(None)
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        encode, reported = msgspec.json.Encoder().encode, 0
        while (line := self._lines.get()) is not None:
            try:
                self._file.write(encode(line) + b"\n")
            except OSError as error:
                log.error("the request log cannot be written: %s", error)
            if self._lines.empty():
                reported = self._warn_dropped(reported)
        self._warn_dropped(reported)

    def _warn_dropped(self, reported: int) -> int:
        """told: how many were told of before; how many are now."""
        dropped = self._dropped
        if dropped > reported:
            log.warning("the request log is too slow: %d lines were dropped", dropped - reported)
        return dropped


async def log_batches(
    batches: AsyncGenerator[list[Event]], line: RequestLogLine, request_log: RequestLog, elapsed: Callable[[], float]
) -> AsyncGenerator[list[Event]]:
    """The same batches; when they are over, however that is, the line is. Closing it closes them.

    elapsed: seconds since the arrival.
    """
    try:
        async with aclosing(batches):
            async for batch in batches:
                line.record(batch, elapsed())
                yield batch
    except Exception as error:
        line.failed(error)
        raise
    finally:
        line.latency_s = elapsed()
        if line.status == CLIENT_CLOSED_REQUEST:
            line.error = "cancelled"
        request_log.put(line)
