"""The autoscaling policy: how many replicas the load needs. Ray applies the bounds and the delays. Knows no Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..pipeline.models import Models
from ..settings import RaySettings

REQUESTS, WAITING_TOKENS, KV_USAGE = "requests", "waiting_tokens", "kv_usage"
"""What a replica reports."""


class AutoscalingContext(Protocol):
    """What the policy reads of Ray's context. aggregated_metrics: of each name, the value of each replica."""

    current_num_replicas: int
    total_num_requests: float
    aggregated_metrics: Mapping[str, Mapping[Any, float]] | None


def measure_load(models: Models) -> dict[str, float]:
    """The load of a replica: requests that run or wait, prompt tokens that wait, share of the KV cache in use."""
    requests, usage = 0, 0.0
    for model in models:
        states = [engine.health() for engine in model.engines]
        requests += sum(state.running + state.waiting for state in states) + model.queue.n_held
        shares: Sequence[float | None] = [state.kv_cache_usage for state in states]
        if model.stats_source is not None:
            shares = [stats.kv_cache_usage for stats in model.stats_source.stats()]
        # The fullest one: requests to it wait, however empty the others are.
        usage = max([usage, *(share or 0.0 for share in shares)])
    return {
        REQUESTS: float(requests),
        WAITING_TOKENS: float(sum(model.queue.waiting_tokens for model in models)),
        KV_USAGE: usage,
    }


class LoadPolicy:
    """Compares the load of all replicas with what each should have; the scarcest of the three decides.

    Arguments: as in RaySettings. Ray passes them by name.
    """

    def __init__(self, target_requests: float, target_waiting_tokens: int, target_kv_usage: float) -> None:
        self._target_requests = target_requests
        self._target_waiting_tokens, self._target_kv_usage = target_waiting_tokens, target_kv_usage

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas, and a state, which is empty."""
        metrics = context.aggregated_metrics or {}
        requests = sum(metrics.get(REQUESTS, {}).values())
        waiting_tokens = sum(metrics.get(WAITING_TOKENS, {}).values())
        # A replica has a KV cache of its own: the sum of the shares, in caches.
        kv_caches = sum(metrics.get(KV_USAGE, {}).values())
        needed = max(
            # Ray counts streams that no engine works on too, such as those that follow a stored response.
            max(requests, context.total_num_requests) / self._target_requests,
            # Tokens wait because the present replicas are busy.
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
