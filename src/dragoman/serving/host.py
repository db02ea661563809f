"""Checks of request headers: their number, and the allowed Host names.

The Host check prevents DNS rebinding and Host confusion: in Starlette CVE-2026-48710 and vLLM CVE-2026-48746 text of a
malformed Host reached decisions. Here a Host is well formed and allowed, or the request is rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from starlette.datastructures import Headers

from ..core.errors import HeadersTooLarge, MisdirectedRequest, RequestError
from ..settings import is_loopback

MAX_HEADERS = 100
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def build_allowed_hosts(bind: str | None, configured: Sequence[str]) -> tuple[str, ...]:
    """Return the allowed names besides loopback; `*` allows all.

    On loopback or a Unix socket only configured names are added.
    """
    # Loopback stays allowed, so that health checks on the machine work.
    if configured:
        return (*LOOPBACK_NAMES, *(name.lower() for name in configured))
    # A server on a network is reached by names that it cannot know, so none is rejected unless names are configured.
    return LOOPBACK_NAMES if bind is None or is_loopback(bind.strip("[]").lower()) else ("*",)


def check_headers(headers: Headers, allowed: tuple[str, ...]) -> None:
    """Check the headers.

    Raises:
        HeadersTooLarge: there are too many.
        RequestError, MisdirectedRequest: as `check_host`.
    """
    if len(headers.raw) > MAX_HEADERS:
        raise HeadersTooLarge(f"A request may have at most {MAX_HEADERS} headers; this one has {len(headers.raw)}.")
    check_host(headers, allowed)


def check_host(headers: Headers, allowed: tuple[str, ...]) -> None:
    """Check the Host header.

    Raises:
        RequestError: it is missing, repeated or malformed.
        MisdirectedRequest: the name is not allowed.
    """
    hosts = headers.getlist("host")
    # Of two Hosts, a proxy and this server could each believe a different one.
    name = _read_name(hosts[0]) if len(hosts) == 1 else None
    if name is None:
        raise RequestError("The Host header must be given once, as `name` or `name:port`.")
    if "*" not in allowed and name not in allowed and not is_loopback(name.strip("[]")):
        raise MisdirectedRequest("This server does not answer for that Host. See --allowed-hosts.")


@lru_cache(maxsize=256)  # The clients of a server send few different ones.
def _read_name(host: str) -> str | None:
    """The name in lower case, without the port, which forwarding changes; None for a malformed header."""
    return _strip_port(host).lower() if _is_well_formed(host) else None


def _strip_port(host: str) -> str:
    return host[: host.index("]") + 1] if host.startswith("[") else host.partition(":")[0]


def _is_well_formed(host: str) -> bool:
    name = _strip_port(host) if not host.startswith("[") or "]" in host else ""
    rest = host[len(name) :]
    if not name or (rest and not (rest[0] == ":" and (rest[1:] == "" or rest[1:].isdecimal()) and len(rest) <= 6)):
        return False
    if name.startswith("["):
        return all(char in "0123456789abcdefABCDEF:.%[]" for char in name)
    return len(name) <= 253 and all(char.isascii() and (char.isalnum() or char in "-._") for char in name)
