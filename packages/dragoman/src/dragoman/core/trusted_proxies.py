"""The client's address and scheme as reverse proxies report them.

Anyone can send `X-Forwarded-For`, so it counts only from proxies that the operator has
named. Each proxy appends the address that it was called from, so the entries are read
from the right, as long as they too are named proxies: the first other address is the
client's, whatever the client has put to the left of it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
ANY = "*"
UNIX = "unix"
"""The word for clients over a Unix socket, which have no address."""
_SCHEMES = {
    "http": {b"http": "http", b"https": "https"},
    "websocket": {b"http": "ws", b"https": "wss", b"ws": "ws", b"wss": "wss"},
}


class TrustedProxies:
    """The proxies whose forwarding headers count. False if there are none.

    names: addresses, networks such as `10.0.0.0/8`, `unix` or `*`; each may be a list
        with commas.

    Raises:
        ValueError: a name is none of these.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        words = [word.strip() for name in names for word in name.split(",") if word.strip()]
        self._trusts_all = ANY in words
        self._trusts_unix = self._trusts_all or UNIX in words
        self._networks = [ipaddress.ip_network(word) for word in words if word not in (ANY, UNIX)]

    def __bool__(self) -> bool:
        return self._trusts_unix or bool(self._networks)

    def trusts(self, host: str | None) -> bool:
        """Whether this is a proxy's address; None or empty for a Unix socket."""
        if not host:
            return self._trusts_unix
        address = _parse_address(host)
        return self._trusts_all or (address is not None and self._trusts_address(address))

    def find_client(
        self, peer: tuple[str, int] | None, headers: Sequence[tuple[bytes, bytes]]
    ) -> tuple[str, int] | None:
        """Return the client's address and port; 0 if its port is unknown.

        peer: the address of the connection; None for a Unix socket.
        headers: names in lower case.
        """
        client = peer
        is_trusted = self.trusts(None if peer is None else peer[0])
        entries = [
            entry
            for name, value in headers
            if name == b"x-forwarded-for"
            for entry in value.split(b",")
        ]
        while is_trusted and entries:
            # An entry that is no address, such as `unknown`, hides what is before it.
            if (found := _parse_entry(entries.pop().decode("latin-1").strip())) is None:
                break
            address, port = found
            client = (str(address), port)
            is_trusted = self._trusts_all or self._trusts_address(address)
        return client

    def find_scheme(
        self,
        peer: tuple[str, int] | None,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        kind: str,
    ) -> str | None:
        """Return the scheme that the nearest proxy was called with; None if unknown.

        kind: `http` or `websocket`.
        """
        values = [value for name, value in headers if name == b"x-forwarded-proto"]
        if not values or not self.trusts(None if peer is None else peer[0]):
            return None
        return _SCHEMES[kind].get(values[-1].rpartition(b",")[2].strip().lower())

    def _trusts_address(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _parse_address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    # A socket for IPv6 shows clients over IPv4 like this.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _parse_entry(text: str) -> tuple[Address, int] | None:
    """Parse an entry: an address, some proxies add a port, with brackets for IPv6."""
    host = text
    port = ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return None
        port = rest[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    address = _parse_address(host)
    if address is None or (port and not (port.isascii() and port.isdigit() and len(port) <= 5)):
        return None
    return address, int(port or 0)
