"""What is asked of a transport's socket itself."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys

Address = tuple[str, int | None]


def read_addresses(transport: asyncio.BaseTransport) -> tuple[Address | None, Address | None]:
    """The client's address and the server's, in ASGI's words; the transport is not made to remember them too.

    A socket file is a server of that name, and no client's.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        return None, None
    with socket.socket(sock.family, sock.type, sock.proto, fileno=sock.fileno()) as duplicate:
        try:
            return _build_address(duplicate.getpeername()), _build_address(duplicate.getsockname(), is_server=True)
        except OSError:
            # It is gone already.
            return None, None
        finally:
            duplicate.detach()


def reset_transport(transport: asyncio.Transport) -> None:
    """Close it so that its other end sees an error, and not the end of what was sent."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _build_address(sockname: tuple[str, int] | str, *, is_server: bool = False) -> Address | None:
    """found: as sockets tell it; IPv6 has more in its tuple."""
    if isinstance(sockname, tuple):
        # Many connections come from one host.
        return sys.intern(sockname[0]), sockname[1]
    return (sockname, None) if is_server else None
