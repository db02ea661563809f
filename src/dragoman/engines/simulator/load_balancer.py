"""Data-parallel load balancing: the requested rank, else the least loaded one, as in vLLM's balancer. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import RequestError
from .rank import DataParallelRank


class DataParallelBalancer:
    """The least loaded rank; ties go round robin."""

    def __init__(self) -> None:
        self._next_rank = 0

    def choose(self, ranks: Sequence[DataParallelRank], requested: str | None) -> DataParallelRank:
        """requested: a rank's number as JSON text; None for the least loaded. Raises RequestError."""
        count = len(ranks)
        if requested is not None:
            number = int(requested)
            if not 0 <= number < count:
                raise RequestError(
                    f"x-data-parallel-rank: {number} is not from 0 to {count - 1}.", code="invalid_header"
                )
            return ranks[number]
        # From the rank after the last one, so that ties go round in turn.
        chosen = min((ranks[(self._next_rank + step) % count] for step in range(count)), key=lambda rank: rank.load)
        self._next_rank = (chosen.number + 1) % count
        return chosen
