"""How much a client may send before it is answered, and how long everything may take."""

from __future__ import annotations

from msgspec import Struct


class HttpLimits(Struct, frozen=True):
    """head_bytes: request line and headers together. held_bytes: what is kept of a body, or of the next requests,
    until somebody asks for it; reading pauses above.

    Seconds. head: from the connection, or from a later request's first byte, to the end of its headers. body: silence
    in a body. idle: between two requests. linger: how long the rest of a body that nobody reads any more is taken in.
    stall: how long a client may take nothing of what was written to it.
    """

    max_head_bytes: int = 32 * 1024
    max_buffered_bytes: int = 64 * 1024
    head_timeout: float = 10.0
    body: float = 15.0
    linger_timeout: float = 5.0
    stall_timeout: float = 60.0
