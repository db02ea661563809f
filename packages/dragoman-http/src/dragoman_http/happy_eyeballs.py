"""TCP connections to the first address of a host that answers (Happy Eyeballs, RFC
8305).
"""

from __future__ import annotations

import asyncio
import socket
from itertools import zip_longest
from typing import Any

STAGGER = 0.25
"""Seconds until the next address of a host is tried in parallel (Happy Eyeballs, RFC
8305).
"""
AddressInfo = tuple[Any, Any, int, str, Any]


async def open_socket(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that answers. Raises OSError if none
    does.
    """
    try:
        # An address needs no name server, and so no thread that waits for one.
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if len(infos) == 1:
        return await _connect_socket(loop, infos[0])
    errors: list[BaseException] = []
    pending: set[asyncio.Task[socket.socket]] = set()
    connected: list[socket.socket] = []
    # IPv6 and IPv4 addresses alternate: if one family does not work, its addresses do
    # not delay the other's.
    first = [info for info in infos if info[0] == infos[0][0]]
    others = [info for info in infos if info[0] != infos[0][0]]
    untried = [info for pair in zip_longest(first, others) for info in pair if info is not None]
    try:
        while not connected and (untried or pending):
            if untried:
                pending.add(asyncio.create_task(_connect_socket(loop, untried.pop(0))))
            done, pending = await asyncio.wait(
                pending, timeout=STAGGER if untried else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                if error is None:
                    connected.append(task.result())
                else:
                    errors.append(error)
    finally:
        for task in pending:
            task.cancel()
        results = await asyncio.gather(*pending, return_exceptions=True)
        late = [result for result in results if isinstance(result, socket.socket)]
        for sock in (*connected[1:], *late):
            sock.close()
    if not connected:
        raise errors[0] if errors else OSError(f"{host} has no address")
    return connected[0]


async def _connect_socket(loop: asyncio.AbstractEventLoop, info: AddressInfo) -> socket.socket:
    family, kind, proto, _, address = info
    sock = socket.socket(family, kind, proto)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
