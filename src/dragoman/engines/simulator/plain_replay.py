"""Replay of independent requests on a fleet with round-robin routing: only the figures of a report are kept.

For a million requests and more. `replay` gives the same times, and a log of every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from .hashing import TracedContents
from .plain_replica import EXACT_VALUES, LoadTotals, PlainReplica, RequestTimes, WeightedSample
from .profile import SimulatorProfile
from .report import Report, ReportColumns, Slo, Spread
from .scheduler import SimulatedScheduler
from .sequence import SimulatedSequence
from .workload import RequestTable


def is_plain(profile: SimulatorProfile) -> bool:
    """Whether replicas of this profile can be replayed here: decoding sequences advance by a token in every step."""
    config = profile.engine
    return (
        config.scheduling_policy == "fcfs"
        and not config.num_speculative_tokens
        and not config.long_prefill_token_threshold
        and not config.long_prefill_token_threshold_adaptive
        and config.max_num_seqs <= config.max_num_batched_tokens
        and not profile.noise
        and not (profile.hardware.lock_step and profile.hardware.data_parallel > 1)
    )


class PlainReplay:
    """One run. After `run`, `times` has the columns of the requests, and `totals` counts.

    max_gaps: of different inter-token latencies that are kept exactly, see `WeightedSample`.
    """

    def __init__(
        self, table: RequestTable, profile: SimulatorProfile, replicas: int, *, max_gaps: int = EXACT_VALUES
    ) -> None:
        self._table, self._profile, self._frontend_seconds = table, profile, profile.frontend_seconds
        self.times, self.totals = RequestTimes.allocate(len(table)), LoadTotals()
        self.gaps = WeightedSample(max_gaps)
        self._replicas = [
            PlainReplica(profile.engine, profile.latency, self.times, self.totals, self.gaps) for _ in range(replicas)
        ]

    def run(self, tick: Callable[[int], None] | None = None) -> None:
        """Serve all requests. tick: called with the number of requests that have arrived.

        Raises: RequestError for a request that can never run.
        """
        table, replicas, frontend = self._table, self._replicas, self._frontend_seconds
        self._check_lengths()
        # Stable, so that simultaneous arrivals keep the workload's order, as in `Replay`.
        order = np.argsort(np.array(table.arrivals), kind="stable")
        for position, index in enumerate(cast("list[int]", order.tolist())):
            number = position % len(replicas)
            replica, now = replicas[number], table.arrivals[index] + frontend
            replica.advance(now)
            replica.enqueue(index, table.inputs[index], table.outputs[index], now)
            self.times.replicas[index] = number
            if tick is not None:
                tick(position + 1)
        for replica in replicas:
            replica.advance(float("inf"))

    def _check_lengths(self) -> None:
        """Check that all requests fit; the scheduler words the error."""
        inputs, outputs = np.array(self._table.inputs), np.array(self._table.outputs)
        too_long = np.flatnonzero(inputs + outputs > self._profile.engine.max_context)
        for index in cast("list[int]", too_long[:1].tolist()):
            SimulatedScheduler(self._profile.engine).check(
                SimulatedSequence(
                    self._table[index].id,
                    num_prompt_tokens=int(inputs[index]),
                    max_tokens=int(outputs[index]),
                    contents=TracedContents("", (), block_size=16, traced_block_size=16),
                )
            )

    def build_report(self, slo: Slo | None = None) -> Report:
        table, times, totals = self._table, self.times, self.totals
        size, count = self._profile.engine.num_gpu_blocks - 1, len(self._replicas)
        return ReportColumns(
            arrivals=np.array(table.arrivals),
            first_tokens=np.array(times.first_token),
            last_tokens=np.array(times.last_token),
            inputs=np.array(table.inputs, dtype=np.float64),
            outputs=np.array(table.outputs, dtype=np.float64),
            gaps=Spread(self.gaps.mean, *self.gaps.compute_percentiles((50, 90, 99))),
            kv_seconds=totals.used_blocks / size,
            running_seconds=totals.running,
            waiting_seconds=totals.waiting,
            kv_max=totals.most_used_blocks / size,
            preemptions=sum(times.preemptions),
            replicas=count,
            replicas_mean=count,
            replicas_max=count,
        ).build_report(slo)
