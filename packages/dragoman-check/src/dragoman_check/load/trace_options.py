"""A trace as read, and the options for what its file does not contain."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from .workload import WorkloadRequest


class TraceOptions(Struct, frozen=True):
    """Arrival times for a data set without times.

    rate: conversations that begin per second, as a Poisson process.
    think_seconds: mean pause between turns.
    max_requests: maximum number of requests; None means all.
    """

    rate: float = 1.0
    think_seconds: float = 5.0
    max_requests: int | None = None


class Trace(Struct, frozen=True):
    requests: Sequence[WorkloadRequest]
    notes: tuple[str, ...] = ()
