"""The autoscaling policy: computes the number of replicas from their load.

Ray applies the bounds and the delays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..pipeline.model_registry import Models
from ..settings import RaySettings

REQUESTS = "requests"


WAITING_TOKENS = "waiting_tokens"


KV_USAGE = "kv_usage"
"""Names of the metrics that a replica reports."""


class AutoscalingContext(Protocol):
    """The part of Ray's context that the policy reads.

    aggregated_metrics: for each name of a metric, the value of each replica.
    """

    current_num_replicas: int
    total_num_requests: float
    aggregated_metrics: Mapping[str, Mapping[Any, float]] | None


def measure_load(models: Models) -> dict[str, float]:
    """Measure the load of a replica: requests that run or wait, waiting prompt tokens,
    share of the KV cache in use.
    """
    requests = 0
    usage = 0.0
    for model in models:
        states = [engine.health() for engine in model.engines]
        requests += (
            sum(state.running + state.waiting for state in states) + model.queues.generation.n_held
        )
        shares: Sequence[float | None] = [state.kv_cache_usage for state in states]
        if model.interfaces.stats_source is not None:
            shares = [stats.kv_cache_usage for stats in model.interfaces.stats_source.stats()]
        # The fullest cache counts: requests to its engine wait, even if the others are
        # empty.
        usage = max([usage, *(share or 0.0 for share in shares)])
    return {
        REQUESTS: float(requests),
        WAITING_TOKENS: float(sum(model.queues.generation.waiting_tokens for model in models)),
        KV_USAGE: usage,
    }


class LoadPolicy:
    """An autoscaling policy: compares the load of all replicas with the target per
    replica.

    Of the three metrics, the one that needs most replicas decides. The arguments are
    those of RaySettings; Ray passes them by name.
    """

    def __init__(
        self, target_requests: float, target_waiting_tokens: int, target_kv_usage: float
    ) -> None:
        self._target_requests = target_requests
        self._target_waiting_tokens = target_waiting_tokens
        self._target_kv_usage = target_kv_usage

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas, and the policy's state, which is empty."""
        metrics = context.aggregated_metrics or {}
        requests = sum(metrics.get(REQUESTS, {}).values())
        waiting_tokens = sum(metrics.get(WAITING_TOKENS, {}).values())
        # Each replica has its own KV cache, so the sum of the shares is a number of
        # caches.
        kv_caches = sum(metrics.get(KV_USAGE, {}).values())
        needed = max(
            # Ray also counts streams without work for an engine, such as replays of a
            # stored response.
            max(requests, context.total_num_requests) / self._target_requests,
            # Tokens wait because all current replicas are busy, so the waiting tokens
            # need additional replicas.
            context.current_num_replicas + waiting_tokens / self._target_waiting_tokens
            if waiting_tokens > self._target_waiting_tokens * context.current_num_replicas
            else 0.0,
            kv_caches / self._target_kv_usage,
        )
        return max(1, math.ceil(needed - 1e-9)), {}


def build_policy_arguments(options: RaySettings) -> dict[str, float]:
    return {
        "target_requests": options.target_requests,
        "target_waiting_tokens": options.target_waiting_tokens,
        "target_kv_usage": options.target_kv_usage,
    }
