"""Queries to the socket of a transport."""

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
    """Return the client's and the server's address in ASGI's form.

    The transport's `get_extra_info` is bypassed, since it caches addresses. For a Unix
    socket the server's address is the path, and the client has none.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        return None, None
    with socket.socket(sock.family, sock.type, sock.proto, fileno=sock.fileno()) as duplicate:
        try:
            return _build_address(duplicate.getpeername()), _build_address(
                duplicate.getsockname(), is_server=True
            )
        except OSError:
            # The socket is already disconnected.
            return None, None
        finally:
            # The descriptor belongs to the transport: closing this object must not
            # close it.
            duplicate.detach()


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address.

    host: in the form of `socket.getpeername`.
    """
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def has_disconnected(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has closed its sending side, even with unread bytes in the
    socket.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return True
    if hasattr(select, "POLLRDHUP"):
        poller = select.poll()
        poller.register(sock.fileno(), select.POLLRDHUP)
        return bool(poller.poll(0))
    if sys.platform == "darwin":
        queue = select.kqueue()
        try:
            events = queue.control(
                [select.kevent(sock.fileno(), select.KQ_FILTER_READ, select.KQ_EV_ADD)], 1, 0
            )
        finally:
            queue.close()
        return any(event.flags & select.KQ_EV_EOF for event in events)
    return False


def count_unread_bytes(transport: asyncio.BaseTransport) -> int:
    """Count the bytes in the socket's receive buffer; 0 where the platform does not
    report them.
    """
    sock = transport.get_extra_info("socket")
    if sys.platform == "win32" or sock is None:
        return 0
    count = bytearray(4)
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def reset_transport(transport: asyncio.Transport) -> None:
    """Reset the connection (SO_LINGER 0), so that the peer sees an error instead of a
    normal end of stream.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _build_address(sockname: tuple[str, int] | str, *, is_server: bool = False) -> Address | None:
    """Convert an address of the socket module to ASGI's form.

    sockname: IPv6 tuples have more than two elements.
    """
    if isinstance(sockname, tuple):
        # Interned because many connections come from one host.
        return sys.intern(sockname[0]), sockname[1]
    return (sockname, None) if is_server else None
