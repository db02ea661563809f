"""Metrics of API keys: usage, rejections."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from ..tenants.shared_counters import SharedCounters

MAX_SERIES = 1000
"""Maximum pairs of key and model in the metrics; further ones are counted together as
`other`.
"""


class KeyUsage(Struct):
    """Usage of one pair of key and model since the start of the process, for the
    metrics.
    """

    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


class KeyMetrics:
    """Usage by key and model, and rejections by key and limit.

    The number of labels is bounded: key names come from the keys file, model names from
    the server's settings.
    """

    def __init__(self) -> None:
        self.usage: dict[tuple[str, str], KeyUsage] = {}
        self.rejected: Counter[tuple[str, str]] = Counter()
        self.running: Counter[str] = Counter()
        self.shared_counters: SharedCounters | None = None
        """None if limits are counted per process."""

    def find_usage(self, key: str, model: str) -> KeyUsage:
        usage = self.usage.get((key, model))
        if usage is None:
            labels = (key, model) if len(self.usage) < MAX_SERIES else ("other", "other")
            usage = self.usage.setdefault(labels, KeyUsage())
        return usage

    def count_rejection(self, key: str, limit: str) -> None:
        labels = (
            (key, limit)
            if (key, limit) in self.rejected or len(self.rejected) < MAX_SERIES
            else ("other", limit)
        )
        self.rejected[labels] += 1
