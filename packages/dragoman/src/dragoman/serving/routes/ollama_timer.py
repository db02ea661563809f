"""The durations that Ollama reports in an answer."""

from __future__ import annotations

from collections.abc import Callable

from ...core.engine_stats import EngineStats
from ...dialects.ollama import (
    OllamaTimings,
)
from ...pipeline.admit import AdmittedRun
from ...pipeline.model_registry import Models
from ...pipeline.request_metrics import RequestMetrics, measure
from ...pipeline.served_model import ServedModel
from ..generation_responder import EventBatches


class AnswerTimer:
    """Measures the durations of an answer: the load of the model, prefill and decode.

    monotonic: clock, seconds.
    arrived_at: arrival of the request, seconds on the same clock.
    """

    def __init__(self, monotonic: Callable[[], float], arrived_at: float) -> None:
        self._monotonic = monotonic
        self._arrived_at = arrived_at
        self._load_seconds = 0.0
        self._metrics: RequestMetrics | None = None

    async def load_model(self, models: Models, name: str) -> ServedModel:
        """Call `Models.load_and_find` and measure its duration."""
        started_at = self._monotonic()
        model = await models.load_and_find(name)
        self._load_seconds = self._monotonic() - started_at
        return model

    def measure_run(self, run: AdmittedRun) -> EventBatches:
        """Return the batches of the run; the durations are measured while they pass."""
        # Separate counters: this one answer must not be counted twice in /metrics.
        self._metrics = RequestMetrics(EngineStats(), self._monotonic)
        if run.direct is not None:
            run.direct.add_observer(self._metrics.observe_batch)
        return measure(run.batches, self._metrics)

    def measure(self) -> OllamaTimings:
        metrics = self._metrics
        return OllamaTimings(
            total=_to_nanoseconds(self._monotonic() - self._arrived_at),
            load=_to_nanoseconds(self._load_seconds),
            prompt_eval=0 if metrics is None else _to_nanoseconds(metrics.prefill_seconds),
            eval=0 if metrics is None else _to_nanoseconds(metrics.decode_seconds),
        )


def _to_nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
