"""How a server ends. Knows no server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShutdownConfig:
    """Seconds. timeout: for which what runs goes on. grace: for which the server can at least be reached, so that
    whoever sends requests to it sees that it is not ready before nobody is there.
    """

    timeout: float = 8.0
    grace: float = 0.0


class LongLived:
    """A connection that stays for many answers. Its `shutdown` asks for an end after those that were begun."""
