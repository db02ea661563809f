"""Recordings of `dragoman record`, of which only streamed chats and completions are
read.
"""

from __future__ import annotations

import base64
from typing import Literal

import msgspec
from msgspec import Struct

from ..request_timing import Timing
from .measured_log import LogError, MeasuredLog, build_log, join_logs
from .stream_timings import StreamTimings

_RECORDING = "recording"
_RECORDED_PATHS = ("/chat/completions", "/completions")


class _RecordingBase64(Struct):
    base64: str


class _RecordingPiece(Struct, array_like=True):
    at: float
    data: str | _RecordingBase64

    @property
    def raw(self) -> bytes:
        return (
            self.data.encode() if isinstance(self.data, str) else base64.b64decode(self.data.base64)
        )


class _RecordingExchange(Struct):
    at: float
    path: str
    status: int
    pieces: list[_RecordingPiece]
    ended: Literal["complete", "cut", "left"]


def is_recording(data: bytes) -> bool:
    return b'"dragoman_recording"' in data[:40]


def read_recording(data: bytes) -> MeasuredLog:
    """Read a recording. A file that was appended to has several runs, each with its own
    clock. Raises LogError.
    """
    runs: list[list[tuple[int, _RecordingExchange]]] = []
    decoder = msgspec.json.Decoder(_RecordingExchange)
    for number, line in enumerate(data.splitlines(), start=1):
        if is_recording(line):
            runs.append([])
        elif line.strip():
            try:
                exchange = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise LogError(f"{_RECORDING}, line {number}: {error}") from None
            if exchange.path.endswith(_RECORDED_PATHS):
                runs[-1].append((number, exchange))
    return join_logs(
        [_build_recording_log(run) for run in runs if run] or [_build_recording_log([])]
    )


def _build_recording_log(exchanges: list[tuple[int, _RecordingExchange]]) -> MeasuredLog:
    complete = [
        (number, exchange)
        for number, exchange in exchanges
        if exchange.status == 200 and exchange.ended == "complete"
    ]
    timings: list[Timing] = []
    for number, exchange in complete:
        stream = StreamTimings(f"{_RECORDING}, line {number}")
        for piece in exchange.pieces:
            stream.feed(exchange.at + piece.at, piece.raw)
        usage = stream.usage
        token_times = stream.token_times
        if usage is not None and token_times:
            counts = (usage.prompt_tokens, usage.completion_tokens)
            timings.append(
                Timing(f"line{number}", exchange.at, token_times[0], token_times[-1], *counts)
            )
    if complete and not timings:
        raise LogError(
            f"{_RECORDING}: no response is streamed with usage; record with "
            f"stream_options.include_usage"
        )
    return build_log(_RECORDING, timings, skipped=len(exchanges) - len(timings))
