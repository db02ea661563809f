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


class HttpMetrics:
    """Counters and histograms of HTTP requests.

    requests: by method, status class (`2xx`) and path.
    request_sizes, response_sizes: number and total bytes, by path.
    durations: seconds of all requests to the end of the response.
    route_durations: the same by method and path, with coarse buckets.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.request_sizes: dict[str, tuple[int, int]] = {}
        self.response_sizes: dict[str, tuple[int, int]] = {}
        self.durations = Histogram(FINE_BUCKETS)
        self.route_durations: dict[tuple[str, str], Histogram] = {}

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
        if path in EXCLUDED_PATHS:
            return
        path = "none" if path == "*" else path
        # Clients choose the method, and every new label value costs memory for ever.
        method = method if method in _METHODS else "other"
        self.requests[method, f"{status // 100}xx", path] += 1
        for sizes, size in (
            (self.request_sizes, request_bytes),
            (self.response_sizes, response_bytes),
        ):
            count, total = sizes.get(path, (0, 0))
            sizes[path] = count + 1, total + size
        self.durations.observe(seconds)
        if (method, path) not in self.route_durations:
            self.route_durations[method, path] = Histogram(COARSE_BUCKETS)
        self.route_durations[method, path].observe(seconds)
