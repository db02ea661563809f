"""Which rank takes a request: the one that a router named, else the least loaded, as in vLLM's own balancer. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import RequestError
from .rank import DataParallelRank


class DataParallelBalancer:
    """Of equals the next in turn."""

    def __init__(self) -> None:
        self._next_rank = 0

    def choose(self, ranks: Sequence[DataParallelRank], requested: str | None) -> DataParallelRank:
        """named: the number of one of them, as JSON text. Raises RequestError."""
        count = len(ranks)
        if requested is not None:
            number = int(requested)
            if not 0 <= number < count:
                raise RequestError(
                    f"x-data-parallel-rank: {number} is not from 0 to {count - 1}.", code="invalid_header"
                )
            return ranks[number]
        chosen = min((ranks[(self._next_rank + step) % count] for step in range(count)), key=lambda rank: rank.load)
        self._next_rank = (chosen.number + 1) % count
        return chosen
