"""HTTP metrics with the names of vLLM's `/metrics`.

Their paths are route patterns, which bounds the number of label values.
"""

from __future__ import annotations

from collections import Counter

from ..core.histogram import Histogram

FINE_BUCKETS = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    2.5,
    3.0,
    3.5,
    4.0,
    4.5,
    5.0,
    7.5,
    10.0,
    30.0,
    60.0,
)
COARSE_BUCKETS = (0.1, 0.5, 1.0)
EXCLUDED_PATHS = frozenset(
    {
        "/metrics",
        "/health",
        "/healthz",
        "/livez",
        "/load",
        "/ping",
        "/readyz",
        "/version",
        "/server_info",
    }
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RouteMetrics:
    """The requests of one path with one method.

    statuses: number of responses by status class, such as 2.
    request_bytes, response_bytes: totals of the bodies with a Content-Length.
    durations: seconds to the end of the response.
    """

    __slots__ = ("durations", "request_bytes", "response_bytes", "statuses")

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.request_bytes = 0
        self.response_bytes = 0
        self.durations = Histogram(FINE_BUCKETS)


class HttpMetrics:
    """Counters and histograms of HTTP requests.

    routes: by method and path. A request updates only these; what the metrics report in
        sum is added up when they are read.
    """

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], RouteMetrics] = {}

    def record(
        self,
        method: str,
        path: str,
        status: int,
        seconds: float,
        request_bytes: int,
        response_bytes: int,
    ) -> None:
        """Record a completed request.

        path: the route's pattern, or `*` if there is none.
        request_bytes, response_bytes: by Content-Length; 0 without one (a stream has
            none).
        """
        route = self.routes.get((method, path))
        if route is None:
            if path in EXCLUDED_PATHS:
                return
            # Clients choose the method, and every new label value costs memory for ever.
            method = method if method in _METHODS else "other"
            labels = method, "none" if path == "*" else path
            route = self.routes.setdefault(labels, RouteMetrics())
        route.statuses[status // 100] += 1
        route.request_bytes += request_bytes
        route.response_bytes += response_bytes
        route.durations.observe(seconds)

    def count_requests(self) -> dict[tuple[str, str, str], int]:
        """Return the number of requests by method, status class (`2xx`) and path."""
        return {
            (method, f"{status}xx", path): count
            for (method, path), route in self.routes.items()
            for status, count in route.statuses.items()
        }

    def sum_sizes(self) -> dict[str, tuple[int, int, int]]:
        """Return the number of requests, the bytes of their bodies and those of the
        responses, by path.
        """
        sizes: dict[str, tuple[int, int, int]] = {}
        for (_, path), route in self.routes.items():
            count, request_bytes, response_bytes = sizes.get(path, (0, 0, 0))
            sizes[path] = (
                count + route.durations.count,
                request_bytes + route.request_bytes,
                response_bytes + route.response_bytes,
            )
        return sizes

    def sum_durations(self) -> Histogram:
        """Return the durations of all requests."""
        total = Histogram(FINE_BUCKETS)
        for route in self.routes.values():
            total.add(route.durations)
        return total

    def list_durations(self) -> list[tuple[tuple[str, str], Histogram]]:
        """List the durations by method and path, in coarse buckets."""
        return [
            (labels, route.durations.coarsen(COARSE_BUCKETS))
            for labels, route in self.routes.items()
        ]
