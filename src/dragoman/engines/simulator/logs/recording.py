"""A recording of `dragoman record`: the streamed chats and completions in it. Pure.

The counts are the server's own, so the clients must have asked for them (`stream_options.include_usage`).
"""

from __future__ import annotations

import base64
import codecs
from typing import Literal

import msgspec
from msgspec import Struct

from ..timing import Timing
from .log import Log, LogError, joined, log_of
from .streamed import Streamed

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


def is_one(data: bytes) -> bool:
    return b'"dragoman_recording"' in data[:40]


def read(data: bytes) -> Log:
    """Raises LogError. A file that was appended to has several runs, each with a clock of its own."""
    runs: list[list[tuple[int, _Exchange]]] = []
    decoder = msgspec.json.Decoder(_Exchange)
    for number, line in enumerate(data.splitlines(), start=1):
        if is_one(line):
            runs.append([])
        elif line.strip():
            try:
                exchange = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise LogError(f"{FORMAT}, line {number}: {error}") from None
            if exchange.path.endswith(PATHS):
                runs[-1].append((number, exchange))
    return joined([_run(run) for run in runs if run] or [_run([])])


def _run(asked: list[tuple[int, _Exchange]]) -> Log:
    whole = [(number, each) for number, each in asked if each.status == 200 and each.ended == "complete"]
    timings = [found for number, each in whole if (found := _timing(number, each)) is not None]
    if whole and not timings:
        raise LogError(f"{FORMAT}: no answer is streamed with its usage; ask for stream_options.include_usage")
    return log_of(FORMAT, timings, skipped=len(asked) - len(timings))


def _timing(number: int, exchange: _Exchange) -> Timing | None:
    heard = Streamed(f"{FORMAT}, line {number}")
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for piece in exchange.pieces:
        lines, _, rest = (rest + decoder.decode(piece.raw)).rpartition("\n")
        heard.hear(exchange.at + piece.at, lines)
    if heard.usage is None or not heard.tokens:
        return None
    counts = (heard.usage.prompt_tokens, heard.usage.completion_tokens)
    return Timing(f"line{number}", exchange.at, heard.tokens[0], heard.tokens[-1], *counts)
