"""What is asked of a transport's socket itself."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import sys

if sys.platform != "win32":
    import fcntl
    import termios

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


def is_loopback(host: str) -> bool:
    """host: as a socket tells it."""
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Whether the other end sends no more, also while there are bytes from it that nobody has read."""
    lent = transport.get_extra_info("socket")
    if lent is None or lent.fileno() < 0:
        return True
    if hasattr(select, "POLLRDHUP"):
        asked = select.poll()
        asked.register(lent.fileno(), select.POLLRDHUP)
        return bool(asked.poll(0))
    if sys.platform == "darwin":
        queue = select.kqueue()
        try:
            events = queue.control([select.kevent(lent.fileno(), select.KQ_FILTER_READ, select.KQ_EV_ADD)], 1, 0)
        finally:
            queue.close()
        return any(event.flags & select.KQ_EV_EOF for event in events)
    return False


def unread(transport: asyncio.BaseTransport) -> int:
    """Bytes that have come and that nobody has read; 0 where the system does not tell."""
    lent = transport.get_extra_info("socket")
    if sys.platform == "win32" or lent is None:
        return 0
    count = bytearray(4)
    fcntl.ioctl(lent.fileno(), termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


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
