"""Routing of requests to replicas by their schedulers' state. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from .engine_core import EngineCore
from .sequence import SimulatedSequence as Request

Route = Callable[[Request, Sequence[EngineCore]], int]
"""Returns the index of the replica for a request. Replicas have the same block size."""


def build_round_robin() -> Route:
    """Build a round-robin route."""
    counter = count()
    return lambda _, cores: next(counter) % len(cores)


def build_least_loaded() -> Route:
    """Build a route to the fewest requests; waiting ones count four times, as in vLLM's data-parallel balancer."""

    def route(_: Request, cores: Sequence[EngineCore]) -> int:
        return min(range(len(cores)), key=lambda index: _weigh_load(cores[index]))

    return route


def build_prefix_aware(load_weight: float = 16.0) -> Route:
    """Build a route to the longest cached prefix; each queued request costs as much as `load_weight` missing blocks."""

    def route(request: Request, cores: Sequence[EngineCore]) -> int:
        def score(index: int) -> float:
            scheduler = cores[index].scheduler
            return len(scheduler.find_cached_prefix(request)) - load_weight * _weigh_load(cores[index])

        return max(range(len(cores)), key=score)

    return route


def _weigh_load(core: EngineCore) -> int:
    return 4 * core.scheduler.num_waiting + core.scheduler.num_running
