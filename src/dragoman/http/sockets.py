"""What is asked of a transport's socket itself."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys

Address = tuple[str, int | None]


def ends(transport: asyncio.BaseTransport) -> tuple[Address | None, Address | None]:
    """The client's address and the server's, in ASGI's words; the transport is not made to remember them too.

    A socket file is a server of that name, and no client's.
    """
    lent = transport.get_extra_info("socket")
    if lent is None:
        return None, None
    with socket.socket(lent.family, lent.type, lent.proto, fileno=lent.fileno()) as known:
        try:
            return _address(known.getpeername()), _address(known.getsockname(), is_server=True)
        except OSError:
            # It is gone already.
            return None, None
        finally:
            known.detach()


def reset(transport: asyncio.Transport) -> None:
    """Close it so that its other end sees an error, and not the end of what was sent."""
    lent = transport.get_extra_info("socket")
    if lent is not None:
        lent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _address(found: tuple[str, int] | str, *, is_server: bool = False) -> Address | None:
    """found: as sockets tell it; IPv6 has more in its tuple."""
    if isinstance(found, tuple):
        # Many connections come from one host.
        return sys.intern(found[0]), found[1]
    return (found, None) if is_server else None
