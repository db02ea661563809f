"""Limits of the HTTP server."""

from __future__ import annotations

from msgspec import Struct

from ..core.trusted_proxies import TrustedProxies


class HttpLimits(Struct, frozen=True):
    """Limits of the HTTP server. Times are in seconds.

    max_head_bytes: request line and headers together.
    max_buffered_bytes: unread body, or pipelined requests; reading pauses above it.
    head_timeout: from the connection, or a later request's first byte, to the end of
        the headers.
    body: the interval in which a body must grow by `body * body_rate` bytes, or end.
    body_rate: minimum bytes per second, averaged over `body`.
    body_total: from the end of the headers to the body's last byte.
    linger_timeout: how long the unread rest of a body is read and discarded.
    stall_timeout: how long a client may read nothing of what was written.
    peek: interval between disconnect checks while reading is paused.
    connections: concurrent connections; further ones get a 503.
    per_address: concurrent connections from one address that is neither loopback nor a
        proxy's.
    proxies: their connections carry the requests of many clients.
    """

    max_head_bytes: int = 32 * 1024
    max_buffered_bytes: int = 64 * 1024
    head_timeout: float = 10.0
    body: float = 15.0
    body_rate: int = 1024
    body_total: float = 3600.0
    linger_timeout: float = 5.0
    stall_timeout: float = 60.0
    peek: float = 0.2
    connections: int = 16384
    per_address: int = 4096
    proxies: TrustedProxies = TrustedProxies()
