"""The times of one response, for the client that waits for it."""

from __future__ import annotations

from collections.abc import Callable

from ..core.events import Event, Finished, Started, Timings, get_answer_tokens
from .driver import Stage


class ResponseTimes(Stage):
    """Measures a response from its admission to its latest token.

    clock: any monotonic clock, seconds.
    """

    __slots__ = (
        "_admitted_at",
        "_choices",
        "_clock",
        "_first_token_at",
        "_last_token_at",
        "_started_at",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._admitted_at = self._started_at = self._last_token_at = clock()
        self._first_token_at: float | None = None
        self._choices = 1

    @property
    def prefill_seconds(self) -> float:
        """Seconds from the start in the engine to the first token, or until now if
        there is none yet.
        """
        end = self._clock() if self._first_token_at is None else self._first_token_at
        return end - self._started_at

    @property
    def decode_seconds(self) -> float:
        """Seconds from the first token to the latest one."""
        return 0.0 if self._first_token_at is None else self._last_token_at - self._first_token_at

    def feed(self, batch: list[Event]) -> list[Event]:
        for event in batch:
            if isinstance(event, Started):
                self._started_at = self._clock() - event.elapsed
                self._choices = event.choices
            # Events without tokens (a role, the start of a call) do not show progress
            # of the model.
            elif get_answer_tokens(event):
                self._last_token_at = self._clock()
                if self._first_token_at is None:
                    self._first_token_at = self._last_token_at
        return batch


class TimingsReport(ResponseTimes):
    """Adds the times to the `Finished` of a response with one choice."""

    __slots__ = ()

    def feed(self, batch: list[Event]) -> list[Event]:
        super().feed(batch)
        last = batch[-1]
        if isinstance(last, Finished) and self._choices == 1:
            batch[-1] = Finished(last.usage, self._build_timings(), last.warnings)
        return batch

    def _build_timings(self) -> Timings:
        has_token = self._first_token_at is not None
        return Timings(
            self._started_at - self._admitted_at,
            self.prefill_seconds if has_token else None,
            self.decode_seconds,
        )
