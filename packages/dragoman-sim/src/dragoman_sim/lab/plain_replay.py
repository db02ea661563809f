"""A faster replay of independent requests with round-robin routing, which keeps only
the figures of a report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from dragoman_check.load.load_statistics import Slo, Spread
from dragoman_check.load.request_table import RequestTable

from ..engine.block_hashes import TracedContents
from ..engine.profile import SimulatorProfile
from ..engine.scheduler import SimulatedScheduler
from ..engine.sequence import SimulatedSequence
from .plain_replica import LoadTotals, PlainReplica, RequestTimes
from .simulation_report import Report, ReportColumns
from .weighted_sample import EXACT_VALUES, WeightedSample


def is_plain(profile: SimulatorProfile) -> bool:
    """Whether `PlainReplay` can replay this profile: each decoding sequence must
    advance by one token in every step.
    """
    config = profile.engine
    return (
        config.scheduling_policy == "fcfs"
        and not config.num_speculative_tokens
        and not config.kv_cache_groups
        and not config.long_prefill_token_threshold
        and not config.long_prefill_token_threshold_adaptive
        and config.max_num_seqs <= config.max_num_batched_tokens
        and not profile.noise
        and not (profile.hardware.lock_step and profile.hardware.data_parallel > 1)
    )


class PlainReplay:
    """A replay on plain replicas. After `run`, `times` has the requests' times, and
    `totals` the load.

    replicas: number of replicas.
    max_gaps: maximum number of inter-token latencies that are stored exactly, see
        `WeightedSample`.
    """

    def __init__(
        self,
        table: RequestTable,
        profile: SimulatorProfile,
        replicas: int,
        *,
        max_gaps: int = EXACT_VALUES,
    ) -> None:
        self._table = table
        self._profile = profile
        self._frontend_seconds = profile.frontend_seconds
        self.times = RequestTimes.allocate(len(table))
        self.totals = LoadTotals()
        self.gaps = WeightedSample(max_gaps)
        self._replicas = [
            PlainReplica(profile.engine, profile.latency, self.times, self.totals, self.gaps)
            for _ in range(replicas)
        ]

    def run(self, tick: Callable[[int], None] | None = None) -> None:
        """Serve all requests.

        tick: called with the number of requests that have arrived.

        Raises:
            RequestError: a request can never run.
        """
        table = self._table
        replicas = self._replicas
        frontend = self._frontend_seconds
        inputs = np.array(table.inputs)
        outputs = np.array(table.outputs)
        too_long = np.flatnonzero(inputs + outputs > self._profile.engine.max_context)
        if len(too_long):
            index = int(too_long[0])
            # `check` raises the scheduler's error.
            SimulatedScheduler(self._profile.engine).check(
                SimulatedSequence(
                    table[index].id,
                    num_prompt_tokens=int(inputs[index]),
                    max_tokens=int(outputs[index]),
                    contents=TracedContents("", (), block_size=16, traced_block_size=16),
                )
            )
        # Stable, so that simultaneous arrivals keep the workload's order, as in
        # `Replay`.
        order = np.argsort(np.array(table.arrivals), kind="stable")
        for position, index in enumerate(cast("list[int]", order.tolist())):
            number = position % len(replicas)
            replica = replicas[number]
            now = table.arrivals[index] + frontend
            replica.advance(now)
            replica.enqueue(index, table.inputs[index], table.outputs[index], now)
            self.times.replicas[index] = number
            if tick is not None:
                tick(position + 1)
        for replica in replicas:
            replica.advance(float("inf"))

    def build_report(self, slo: Slo | None = None) -> Report:
        table = self._table
        times = self.times
        totals = self.totals
        size = self._profile.engine.num_gpu_blocks - 1
        count = len(self._replicas)
        return ReportColumns(
            arrivals=np.array(table.arrivals),
            first_tokens=np.array(times.first_token),
            last_tokens=np.array(times.last_token),
            inputs=np.array(table.inputs, dtype=np.float64),
            outputs=np.array(table.outputs, dtype=np.float64),
            gaps=Spread(self.gaps.mean, *self.gaps.compute_percentiles((50, 90, 99, 95))),
            kv_seconds=totals.used_blocks / size,
            running_seconds=totals.running,
            waiting_seconds=totals.waiting,
            kv_max=totals.most_used_blocks / size,
            preemptions=sum(times.preemptions),
            replicas=count,
            replicas_mean=count,
            replicas_max=count,
        ).build_report(slo)
