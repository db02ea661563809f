"""The durations that Ollama reports in an answer."""

from __future__ import annotations

from collections.abc import Callable

from ...dialects.ollama import (
    OllamaTimings,
)
from ...pipeline.driver import Stage
from ...pipeline.model_registry import Models
from ...pipeline.response_times import ResponseTimes
from ...pipeline.served_model import ServedModel


class AnswerTimer:
    """Measures the durations of an answer: the load of the model, prefill and decode.

    monotonic: clock, seconds.
    arrived_at: arrival of the request, seconds on the same clock.
    """

    def __init__(self, monotonic: Callable[[], float], arrived_at: float) -> None:
        self._monotonic = monotonic
        self._arrived_at = arrived_at
        self._load_seconds = 0.0
        self._times: ResponseTimes | None = None

    async def load_model(self, models: Models, name: str) -> ServedModel:
        """Call `Models.load_and_find` and measure its duration."""
        started_at = self._monotonic()
        model = await models.load_and_find(name)
        self._load_seconds = self._monotonic() - started_at
        return model

    def measure_run(self) -> Stage:
        """Return a stage of the run, which measures its durations."""
        self._times = ResponseTimes(self._monotonic)
        return self._times

    def measure(self) -> OllamaTimings:
        times = self._times
        return OllamaTimings(
            total=_to_nanoseconds(self._monotonic() - self._arrived_at),
            load=_to_nanoseconds(self._load_seconds),
            prompt_eval=0 if times is None else _to_nanoseconds(times.prefill_seconds),
            eval=0 if times is None else _to_nanoseconds(times.decode_seconds),
        )


def _to_nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
