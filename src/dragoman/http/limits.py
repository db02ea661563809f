"""How much a client may send before it is answered, and how long everything may take."""

from __future__ import annotations

from msgspec import Struct


class HttpLimits(Struct, frozen=True):
    """head_bytes: request line and headers together. held_bytes: what is kept of a body, or of the next requests,
    until somebody asks for it; reading pauses above.

    Seconds. head: from the connection, or from a later request's first byte, to the end of its headers. body: in which
    a body grows by as many bytes as `body_rate` asks for, or ends. body_total: from its first byte to its last. linger:
    how long the rest of a body that nobody reads any more is taken in. stall: how long a client may take nothing of
    what was written to it. peek: between two looks at whether a client has left, while nothing is read from it.

    body_rate: bytes a second, on average over `body`. connections: that are open at the same time; those beyond get a
    503. per_address: of these from one address that is not loopback.
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
