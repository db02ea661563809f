"""The result of a replay: response times, the steps of every replica."""

from __future__ import annotations

from array import array
from itertools import pairwise

from msgspec import Struct

from dragoman_check.load.request_timing import Timing


class StepLog(Struct):
    """The steps of one replica in order, as parallel columns.

    begins, ends: seconds.
    tokens, context, prefill_pairs, sequences: load of the step, as in
        `latency.StepLoad`.
    expert_tokens: mean tokens over the ranks that share experts; without such ranks,
        the step's own tokens.
    kv_usage, running, waiting: state right after the step, when the next one was
        scheduled.
    """

    begins: array[float]
    ends: array[float]
    tokens: array[float]
    context: array[float]
    prefill_pairs: array[float]
    sequences: array[float]
    expert_tokens: array[float]
    kv_usage: array[float]
    running: array[float]
    waiting: array[float]

    @classmethod
    def empty(cls) -> StepLog:
        return cls(*(array("d") for _ in cls.__struct_fields__))


class ReplicaCount(Struct, frozen=True):
    """The number of replicas from a time on.

    at: seconds.
    replicas: serving, starting and draining replicas, which cost the same.
    """

    at: float
    replicas: int


class ReplayResult(Struct, frozen=True):
    """The result of a replay.

    timings: timings of the answered requests, in the order of the workload.
    steps: one log per replica.
    gaps: inter-token latencies of all requests, in seconds.
    replica_counts: changes of the number of replicas; empty without autoscaling.
    has_host_cache: the engines offload keys and values to host memory.
    """

    timings: list[Timing]
    steps: list[StepLog]
    gaps: array[float]
    replica_counts: tuple[ReplicaCount, ...] = ()
    has_host_cache: bool = False

    @property
    def replica_seconds(self) -> float:
        """Replica-seconds from the first arrival to the last token."""
        begin = min((timing.arrival_s for timing in self.timings), default=0.0)
        end = max((timing.last_token_s for timing in self.timings), default=0.0)
        if not self.replica_counts:
            return len(self.steps) * (end - begin)
        points = (*self.replica_counts, ReplicaCount(end, 0))
        return sum(
            point.replicas * max(0.0, min(end, following.at) - point.at)
            for point, following in pairwise(points)
        )
