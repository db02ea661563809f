"""The allowed names in the Host header, a protection against DNS rebinding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from starlette.datastructures import Headers

from ..core.errors import MisdirectedRequest, RequestError
from ..settings import is_loopback

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def build_allowed_hosts(bind: str | None, configured: Sequence[str]) -> tuple[str, ...]:
    """Return the names allowed in the Host header; `*` allows all.

    bind: the address that the server listens on; None for a Unix socket.
    configured: the names in the settings.
    """
    # Loopback stays allowed, so that health checks on the machine work.
    if configured:
        return (*LOOPBACK_NAMES, *(name.lower() for name in configured))
    # A server on a network does not know its names, so it rejects none unless names are
    # configured.
    return LOOPBACK_NAMES if bind is None or is_loopback(bind.strip("[]").lower()) else ("*",)


def check_host(headers: Headers, allowed: tuple[str, ...]) -> None:
    """Check the Host header.

    Raises:
        RequestError: the header is missing, repeated or malformed.
        MisdirectedRequest: the name is not allowed.
    """
    hosts = headers.getlist("host")
    # With two Host headers, a proxy and this server could each use a different one.
    name = _read_name(hosts[0]) if len(hosts) == 1 else None
    if name is None:
        raise RequestError("The Host header must be given once, as `name` or `name:port`.")
    if "*" not in allowed and name not in allowed and not is_loopback(name.strip("[]")):
        raise MisdirectedRequest("This server does not answer for that Host. See --allowed-hosts.")


@lru_cache(maxsize=256)  # The clients of a server send few different hosts.
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
