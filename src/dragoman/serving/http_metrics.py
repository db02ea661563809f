"""What is counted of HTTP itself, in the words of vLLM's `/metrics`: plain numbers, cheap to add to.

Knows no model and no exposition format. A path counts as it is written in the table of routes, so that there are only
so many of them.
"""

from __future__ import annotations

from collections import Counter

from ..core.metrics import Histogram

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
    {"/metrics", "/health", "/healthz", "/livez", "/load", "/ping", "/readyz", "/version", "/server_info"}
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpMetrics:
    """requests: by method, class of status (`2xx`) and path. received, sent: by path, how many there were and their
    bytes in all. fine: seconds of all requests to the end of their answers; coarse: by method and path.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.request_sizes: dict[str, tuple[int, int]] = {}
        self.response_sizes: dict[str, tuple[int, int]] = {}
        self.durations = Histogram(FINE_BUCKETS)
        self.route_durations: dict[tuple[str, str], Histogram] = {}

    def record(
        self, method: str, path: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        """path: `*` where there is no such route. received, sent: bytes by their Content-Length, 0 where there was none
        (a stream has none).
        """
        if path in EXCLUDED_PATHS:
            return
        path = "none" if path == "*" else path
        method = method if method in _METHODS else "other"
        self.requests[method, f"{status // 100}xx", path] += 1
        for sizes, size in ((self.request_sizes, request_bytes), (self.response_sizes, response_bytes)):
            count, total = sizes.get(path, (0, 0))
            sizes[path] = count + 1, total + size
        self.durations.observe(seconds)
        if (method, path) not in self.route_durations:
            self.route_durations[method, path] = Histogram(COARSE_BUCKETS)
        self.route_durations[method, path].observe(seconds)
