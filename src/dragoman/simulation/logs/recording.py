"""Reader of `dragoman record` files: the streamed chats and completions in them. Pure.

Token counts are the server's, so the requests must set `stream_options.include_usage`.
"""

from __future__ import annotations

import base64
import codecs
from typing import Literal

import msgspec
from msgspec import Struct

from ..timing import Timing
from .log import LogError, MeasuredLog, StreamTimings, build_log, join_logs

FORMAT = "recording"
PATHS = ("/chat/completions", "/completions")


class _Base64(Struct):
    base64: str


class _Piece(Struct, array_like=True):
    at: float
    data: str | _Base64

    @property
    def raw(self) -> bytes:
        return self.data.encode() if isinstance(self.data, str) else base64.b64decode(self.data.base64)


class _Exchange(Struct):
    at: float
    path: str
    status: int
    pieces: list[_Piece]
    ended: Literal["complete", "cut", "left"]


def matches_format(data: bytes) -> bool:
    return b'"dragoman_recording"' in data[:40]


def read(data: bytes) -> MeasuredLog:
    """Raises LogError. A file that was appended to has several runs, each with a clock of its own."""
    runs: list[list[tuple[int, _Exchange]]] = []
    decoder = msgspec.json.Decoder(_Exchange)
    for number, line in enumerate(data.splitlines(), start=1):
        if matches_format(line):
            runs.append([])
        elif line.strip():
            try:
                exchange = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise LogError(f"{FORMAT}, line {number}: {error}") from None
            if exchange.path.endswith(PATHS):
                runs[-1].append((number, exchange))
    return join_logs([_build_run_log(run) for run in runs if run] or [_build_run_log([])])


def _build_run_log(exchanges: list[tuple[int, _Exchange]]) -> MeasuredLog:
    complete = [
        (number, exchange) for number, exchange in exchanges if exchange.status == 200 and exchange.ended == "complete"
    ]
    timings = [timing for number, exchange in complete if (timing := _build_timing(number, exchange)) is not None]
    if complete and not timings:
        raise LogError(f"{FORMAT}: no answer is streamed with its usage; ask for stream_options.include_usage")
    return build_log(FORMAT, timings, skipped=len(exchanges) - len(timings))


def _build_timing(number: int, exchange: _Exchange) -> Timing | None:
    stream = StreamTimings(f"{FORMAT}, line {number}")
    decoder, partial_line = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for piece in exchange.pieces:
        lines, _, partial_line = (partial_line + decoder.decode(piece.raw)).rpartition("\n")
        stream.feed(exchange.at + piece.at, lines)
    if stream.usage is None or not stream.token_times:
        return None
    counts = (stream.usage.prompt_tokens, stream.usage.completion_tokens)
    return Timing(f"line{number}", exchange.at, stream.token_times[0], stream.token_times[-1], *counts)
