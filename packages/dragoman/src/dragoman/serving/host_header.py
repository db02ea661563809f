"""The allowed names in the Host header, a protection against DNS rebinding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address

from starlette.datastructures import Headers

from ..core.errors import MisdirectedRequest, RequestError
from ..settings import is_loopback

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


PRIVATE = "private"
"""Allows addresses and private names."""


_PRIVATE_SUFFIXES = (".local", ".localhost", ".internal", ".home.arpa", ".lan", ".intranet")
"""Ends of names that are not in the public DNS, such as
`dragoman.llm.svc.cluster.local`: RFC 6761, 6762, 8375 and ICANN's `.internal`.
"""


def build_allowed_hosts(
    bind: str | None, configured: Sequence[str], *, requires_key: bool = True
) -> tuple[str, ...]:
    """Return the names allowed in the Host header; `*` allows all.

    bind: the address that the server listens on; None for a Unix socket.
    configured: the names in the settings.
    requires_key: whether the server has API keys, which a web page does not know.
    """
    # Loopback stays allowed, so that health checks on the machine work.
    if configured:
        return (*LOOPBACK_NAMES, *(name.lower() for name in configured))
    if bind is None or is_loopback(bind.strip("[]").lower()):
        return LOOPBACK_NAMES
    # A server on a network does not know its names, so it rejects none unless names are
    # configured. Without keys, a page whose public name points here could use it.
    return ("*",) if requires_key else (*LOOPBACK_NAMES, PRIVATE)


def check_host(headers: Headers, allowed: tuple[str, ...]) -> None:
    """Check the Host header.

    Raises:
        RequestError: the header is missing, repeated or malformed.
        MisdirectedRequest: the name is not allowed.
    """
    hosts = headers.getlist("host")
    # With two Host headers, a proxy and this server could each use a different one.
    is_allowed = _judge_host(hosts[0], allowed) if len(hosts) == 1 else None
    if is_allowed is None:
        raise RequestError("The Host header must be given once, as `name` or `name:port`.")
    if not is_allowed:
        raise MisdirectedRequest("This server does not answer for that Host. See --allowed-hosts.")


@lru_cache(maxsize=256)  # The clients of a server send few different hosts.
def _judge_host(host: str, allowed: tuple[str, ...]) -> bool | None:
    """Return whether a host is allowed; None for a malformed header."""
    name = _read_name(host)
    if name is None:
        return None
    is_private = PRIVATE in allowed and _is_private(name)
    return "*" in allowed or name in allowed or is_private or is_loopback(name.strip("[]"))


def _is_private(name: str) -> bool:
    """Whether a name is an address, or cannot be in the public DNS."""
    if name.startswith("[") or "." not in name or name.endswith(_PRIVATE_SUFFIXES):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _read_name(host: str) -> str | None:
    """Return the name in lower case, without the port, which forwarding changes; None
    for a malformed header.
    """
    is_bracketed = host.startswith("[")
    # An IPv6 address without its closing bracket yields an empty name, which is
    # rejected.
    name = host[: host.find("]") + 1] if is_bracketed else host.partition(":")[0]
    port = host[len(name) :]
    if not name or (
        port and not (port[0] == ":" and (port == ":" or port[1:].isdecimal()) and len(port) <= 6)
    ):
        return None
    if is_bracketed:
        is_valid = all(char in "0123456789abcdefABCDEF:.%[]" for char in name)
    else:
        is_valid = len(name) <= 253 and all(
            char.isascii() and (char.isalnum() or char in "-._") for char in name
        )
    return name.lower() if is_valid else None
