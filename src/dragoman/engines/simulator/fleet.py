"""Several replicas of one profile behind a router, on a virtual clock; and how many of them a load needs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

from .engine_core import EngineCore
from .latency import StepTime, noisy
from .profile import Profile
from .replay import Replayed, replay
from .report import Report, Slo, report
from .routing import Route, least_loaded, prefix_aware, round_robin
from .scheduler import Scheduler
from .split import Split, replay_split
from .workload import Request

Routing = Literal["round-robin", "least-loaded", "prefix-aware"]


class Fleet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """replicas: that each do everything, or, where `split` says how many others prefill for them, only decode.
    seed: of the steps' random factors, where the profile has noise.
    """

    profile: Profile
    replicas: int = 1
    routing: Routing = "round-robin"
    split: Split | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicas < 1 or (self.split is not None and self.split.prefill < 1):
            raise ValueError("a fleet has at least 1 replica of each kind")

    @property
    def described(self) -> str:
        if self.split is not None:
            return f"{self.split.prefill} prefill and {self.replicas} decode replicas, {self.routing}"
        return "1 replica" if self.replicas == 1 else f"{self.replicas} replicas, {self.routing}"

    def serve(self, workload: Sequence[Request], *, tick: Callable[[int], None] | None = None) -> Replayed:
        """The whole workload, with empty caches at first. Raises RequestError for what can never run."""
        frontend, routing = self.profile.frontend_seconds, self.routing
        if self.split is None:
            cores = self._cores(self.replicas)
            return replay(workload, cores, frontend_seconds=frontend, route=_route(routing), tick=tick)
        cores = self._cores(self.split.prefill + self.replicas)
        routes = (_route(routing), _route(routing))
        return replay_split(workload, cores, self.split, routes=routes, frontend_seconds=frontend, tick=tick)

    def _cores(self, count: int) -> list[EngineCore]:
        return [EngineCore(Scheduler(self.profile.engine), self._step_time(index)) for index in range(count)]

    def _step_time(self, replica: int) -> StepTime:
        exact = self.profile.latency.seconds
        if not self.profile.noise:
            return exact
        return noisy(exact, self.profile.noise, np.random.default_rng((self.seed, replica)))


def _route(routing: Routing) -> Route:
    match routing:
        case "round-robin":
            return round_robin()
        case "least-loaded":
            return least_loaded()
        case "prefix-aware":
            return prefix_aware()


class Trial(Struct, frozen=True):
    """share: of the requests that kept the SLO."""

    replicas: int
    share: float
    report: Report


class Sweep(Struct, frozen=True):
    """trials: in ascending order of replicas. enough: the fewest replicas that will do; None if `most` are too few."""

    wanted: float
    trials: tuple[Trial, ...]
    enough: int | None


def sweep(
    fleet: Fleet,
    workload: Sequence[Request],
    slo: Slo,
    *,
    wanted: float = 0.99,
    most: int = 64,
    tick: Callable[[int], None] | None = None,
) -> Sweep:
    """The fewest replicas with which a share `wanted` of the requests keeps the SLO: doubling, then bisecting.

    More replicas are taken to be no worse. tick: called with the number of trials done.
    """
    if not 0 < wanted <= 1:
        raise ValueError("the wanted share must be more than 0 and at most 1")
    trials: dict[int, Trial] = {}

    def enough(replicas: int) -> bool:
        trials[replicas] = _try(fleet, replicas, workload, slo)
        if tick is not None:
            tick(len(trials))
        return trials[replicas].share >= wanted

    few, many = 0, 1
    while not enough(many):
        if many == most:
            return Sweep(wanted, _sorted(trials), None)
        few, many = many, min(2 * many, most)
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return Sweep(wanted, _sorted(trials), many)


def _try(fleet: Fleet, replicas: int, workload: Sequence[Request], slo: Slo) -> Trial:
    sized = msgspec.structs.replace(fleet, replicas=replicas)
    found = report(sized.serve(workload), slo)
    return Trial(replicas, (found.good or 0) / found.requests, found)


def _sorted(trials: dict[int, Trial]) -> tuple[Trial, ...]:
    return tuple(trials[replicas] for replicas in sorted(trials))


def answer(found: Sweep) -> str:
    """In a sentence, and the figures behind it."""
    if found.enough is None:
        most = found.trials[-1]
        said = f"{most.replicas} replicas are not enough: {most.share:.2%} of the requests meet the SLO"
    else:
        plural = "replica is" if found.enough == 1 else "replicas are"
        share = next(trial.share for trial in found.trials if trial.replicas == found.enough)
        said = f"{found.enough} {plural} enough: {share:.2%} of the requests meet the SLO"
    lines = [f"{said} (target {found.wanted:.1%}).", "", f"{'replicas':>8}{'meet the SLO':>14}{'goodput/s':>11}"]
    lines[-1] += f"{'TTFT p99 ms':>13}{'TPOT p99 ms':>13}{'KV cache':>10}"
    for trial in found.trials:
        told = trial.report
        lines.append(
            f"{trial.replicas:>8}{trial.share:>14.2%}{told.goodput or 0:>11.2f}{1000 * told.ttft.p99:>13.1f}"
            f"{1000 * told.tpot.p99:>13.1f}{told.kv_usage_mean:>10.1%}"
        )
    return "\n".join(lines) + "\n"
