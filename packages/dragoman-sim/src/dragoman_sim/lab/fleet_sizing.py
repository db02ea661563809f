"""The smallest number of replicas that meets an SLO."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from dragoman_check.load.load_statistics import Slo
from dragoman_check.load.workload import WorkloadRequest

from .fleet import Fleet
from .simulation_report import Report


class Trial(Struct, frozen=True):
    """One simulated fleet size.

    replicas: number of replicas.
    share: share of the requests that meet the SLO, 0 to 1.
    report: report of the run.
    """

    replicas: int
    share: float
    report: Report


class Sweep(Struct, frozen=True):
    """The result of a sweep over fleet sizes.

    wanted: share of the requests that must meet the SLO, 0 to 1.
    trials: simulated sizes, in ascending order of replicas.
    enough: minimum sufficient number of replicas; None if even the maximum is too few.
    """

    wanted: float
    trials: tuple[Trial, ...]
    enough: int | None


def sweep(
    fleet: Fleet,
    workload: Sequence[WorkloadRequest],
    slo: Slo,
    *,
    target_share: float = 0.99,
    max_replicas: int = 64,
    tick: Callable[[int], None] | None = None,
) -> Sweep:
    """Find the smallest number of replicas with which `target_share` of the requests
    meets the SLO.

    The search doubles the number, then bisects; it assumes that more replicas are never
    worse.

    tick: called with the number of trials done.
    """
    if not 0 < target_share <= 1:
        raise ValueError("target_share must be more than 0 and at most 1")
    trials: dict[int, Trial] = {}

    def meets_slo(replicas: int) -> bool:
        candidate = msgspec.structs.replace(fleet, replicas=replicas)
        result = candidate.build_report(workload, slo)
        trials[replicas] = Trial(replicas, (result.good or 0) / result.requests, result)
        if tick is not None:
            tick(len(trials))
        return trials[replicas].share >= target_share

    low = 0
    high = 1
    while not meets_slo(high):
        if high == max_replicas:
            return Sweep(target_share, _sort_trials(trials), None)
        low = high
        high = min(2 * high, max_replicas)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets_slo(middle) else (middle, high)
    return Sweep(target_share, _sort_trials(trials), high)


def _sort_trials(trials: dict[int, Trial]) -> tuple[Trial, ...]:
    return tuple(trials[replicas] for replicas in sorted(trials))


def render_sweep(result: Sweep) -> str:
    """Render the result as a sentence, followed by a table of all trials."""
    if result.enough is None:
        largest = result.trials[-1]
        summary = (
            f"{largest.replicas} replicas are not enough: {largest.share:.2%} of the "
            f"requests meet the SLO"
        )
    else:
        plural = "replica is" if result.enough == 1 else "replicas are"
        share = next(trial.share for trial in result.trials if trial.replicas == result.enough)
        summary = f"{result.enough} {plural} enough: {share:.2%} of the requests meet the SLO"
    lines = [
        f"{summary} (target {result.wanted:.1%}).",
        "",
        f"{'replicas':>8}{'meet the SLO':>14}{'goodput/s':>11}",
    ]
    lines[-1] += f"{'TTFT p99 ms':>13}{'TPOT p99 ms':>13}{'KV cache':>10}"
    for trial in result.trials:
        metrics = trial.report
        lines.append(
            f"{trial.replicas:>8}{trial.share:>14.2%}{metrics.goodput or 0:>11.2f}"
            f"{1000 * metrics.ttft.p99:>13.1f}{1000 * metrics.tpot.p99:>13.1f}{metrics.kv_usage_mean:>10.1%}"  # noqa: E501
        )
    return "\n".join(lines) + "\n"
