"""Histograms of the durations and tokens of calls.

Their names are those of the semantic conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/).
"""

from __future__ import annotations

from .spans import Attributes, Histograms

# Bucket boundaries of the semantic conventions.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


_TOKENS = tuple(float(4**power) for power in range(14))


class GenAiMetrics:
    """Histograms of the durations and tokens of calls."""

    def __init__(self, histograms: Histograms) -> None:
        self._histograms = histograms
        histograms.define("gen_ai.server.request.duration", "Duration of a call.", "s", _SECONDS)
        histograms.define(
            "gen_ai.server.time_to_first_token", "Time to the first token of a call.", "s", _TTFT
        )
        histograms.define(
            "gen_ai.server.time_per_output_token",
            "Time per token after the first.",
            "s",
            _PER_TOKEN,
        )
        histograms.define("gen_ai.client.token.usage", "Tokens of a call.", "{token}", _TOKENS)

    def record(
        self,
        attributes: Attributes,
        *,
        seconds: float,
        ttft: float | None,
        input_tokens: int | None,
        output_tokens: int,
        error: str | None,
    ) -> None:
        observe = self._histograms.observe
        failed = {} if error is None else {"error.type": error}
        observe("gen_ai.server.request.duration", seconds, {**attributes, **failed})
        if ttft is not None:
            observe("gen_ai.server.time_to_first_token", ttft, attributes)
            if output_tokens > 1:
                per_token = (seconds - ttft) / (output_tokens - 1)
                observe("gen_ai.server.time_per_output_token", per_token, attributes)
        if input_tokens is not None:
            observe(
                "gen_ai.client.token.usage",
                input_tokens,
                {**attributes, "gen_ai.token.type": "input"},
            )
            observe(
                "gen_ai.client.token.usage",
                output_tokens,
                {**attributes, "gen_ai.token.type": "output"},
            )
