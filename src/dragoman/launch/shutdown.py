"""Settings of the graceful shutdown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShutdownConfig:
    """Durations of a graceful shutdown, in seconds.

    timeout: how long running requests may continue.
    grace: minimum time for which the server stays reachable but not ready, so that a load balancer notices before the
        port closes.
    """

    timeout: float = 8.0
    grace: float = 0.0


class LongLived:
    """A connection that carries many responses. Its `shutdown` ends it after the responses in progress."""
