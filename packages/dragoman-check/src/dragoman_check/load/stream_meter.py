"""One streamed response of any dialect: arrival times and number of its tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import msgspec
from msgspec import Struct

from .bench_dialects import BenchDialect
from .logs.measured_log import LogError
from .request_timing import Timing

CountSource = Literal["ids", "usage"]
"""Source of the token counts: the token ids in the stream, or the server's usage."""


class Measurement(Struct, frozen=True):
    """One request with a complete response.

    gaps: seconds between arrivals of its tokens; tokens that arrive together count as
        one arrival.
    counted_by: source of the number of output tokens.
    """

    timing: Timing
    gaps: tuple[float, ...]
    counted_by: CountSource


class StreamMeter:
    """Records when the tokens of one response arrive."""

    def __init__(self, dialect: BenchDialect) -> None:
        self._dialect = dialect
        self._token_times: list[float] = []
        self._ids: int | None = None
        self._prompt: int | None = None
        self._completion: int | None = None

    def feed(self, event: bytes, at: float) -> None:
        """Read the data of an event, received at this time. Raises LogError if it is
        invalid or an error.
        """
        if not event.startswith(b"{"):
            return
        try:
            piece = self._dialect.read(event.decode(errors="replace"))
        except msgspec.MsgspecError as error:
            raise LogError(f"invalid event in the stream: {error}") from None
        if piece.ids:
            self._ids = (self._ids or 0) + piece.ids
        # A token without text, such as half a character, shows only in the ids.
        if piece.ids or (piece.has_tokens and self._ids is None):
            self._token_times.append(at)
        # Messages sends the prompt tokens in its first event and the completion tokens
        # later: keep earlier counts.
        self._prompt = piece.prompt if piece.prompt is not None else self._prompt
        self._completion = piece.completion if piece.completion is not None else self._completion

    def finish(self, id: str, sent_at: float) -> Measurement:
        """Build the measurement. Raises LogError if no token arrived, or the server did
        not count them.
        """
        times = self._token_times
        completion = self._ids or self._completion
        if not times or self._prompt is None or completion is None:
            raise LogError("the response has no tokens, or no usage")
        gaps = tuple(after - before for before, after in pairwise(times))
        timing = Timing(id, sent_at, times[0], times[-1], self._prompt, completion)
        return Measurement(timing, gaps, "usage" if self._ids is None else "ids")
