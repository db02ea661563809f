"""Settings of the graceful shutdown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShutdownConfig:
    """Durations of a graceful shutdown, in seconds.

    grace: how long the server serves on, but is not ready, so that load balancers notice and send requests elsewhere.
    timeout: after that, how long running requests may continue.
    """

    timeout: float = 8.0
    grace: float = 0.0


class LongLived:
    """A connection that carries many responses. Its `shutdown` ends it after the responses in progress."""
