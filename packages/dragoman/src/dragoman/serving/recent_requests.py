"""The most recent requests, which the web page lists."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from msgspec import Struct

from ..pipeline.run_counts import RunCounts
from .request_log import RequestLogLine

MAX_RECENT_REQUESTS = 200
"""Number of recent requests that are kept in memory."""


class RecentRequest(Struct):
    """A recent request.

    line: the data of the request; changes while it runs.
    warnings: the parts of the request that are ignored.
    counts: the counts of a generation that runs.
    """

    line: RequestLogLine
    warnings: tuple[str, ...] = ()
    counts: RunCounts | None = None

    @property
    def output_tokens(self) -> int:
        """The tokens so far. The line of a running request misses those that no event
        carries.
        """
        counts = self.counts
        if counts is None or counts.events_carry_tokens:
            return self.line.output_tokens
        return counts.output_tokens


class RecentRequests:
    """The most recent requests, including running ones, without their content."""

    def __init__(self, size: int = MAX_RECENT_REQUESTS) -> None:
        self._requests: deque[RecentRequest] = deque(maxlen=size)

    def add(self, line: RequestLogLine) -> RecentRequest:
        request = RecentRequest(line)
        self._requests.append(request)
        return request

    def iterate_newest_first(self) -> Iterator[RecentRequest]:
        return reversed(self._requests)
