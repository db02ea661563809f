"""Which proxy a URL is requested through, by the variables of the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from msgspec import Struct

from .url import Url

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Proxy(Struct, frozen=True):
    """An HTTP proxy. is_tls: it is connected to over TLS. authorization: value of Proxy-Authorization."""

    is_tls: bool
    host: str
    port: int
    authorization: str | None = None

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


class ProxyRules:
    """The proxies of an environment.

    settings: as `urllib.request.getproxies` returns them: URLs by `http`, `https` and `all`; the exceptions by `no`.

    Raises:
        ValueError: a proxy's URL is invalid, or its scheme is not supported.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        found = getproxies() if settings is None else settings
        self._proxies = {
            scheme: _parse_proxy(found[scheme]) for scheme in ("http", "https", "all") if found.get(scheme)
        }
        self._exceptions = [entry.strip().lower() for entry in found.get("no", "").split(",") if entry.strip()]

    def find(self, url: Url) -> Proxy | None:
        """The proxy of a URL; None: connect directly."""
        proxy = self._proxies.get("https" if url.is_tls else "http") or self._proxies.get("all")
        if proxy is None or any(_matches(entry, url) for entry in self._exceptions):
            return None
        return proxy


def _parse_proxy(text: str) -> Proxy:
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"a proxy has the form http://HOST:PORT or https://HOST:PORT, not {parts.scheme}://")
    authorization = None
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        authorization = f"Basic {base64.b64encode(credentials).decode()}"
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    return Proxy(parts.scheme == "https", parts.hostname, port, authorization)


def _matches(entry: str, url: Url) -> bool:
    """Whether an entry of NO_PROXY names the URL's host.

    As curl: `example.com` also names its subdomains, `.example.com` and `*.example.com` those alone; an address may
    have a prefix length; `*` names every host. A port or a scheme restricts the entry.
    """
    if entry == "*":
        return True
    scheme, separator, rest = entry.rpartition("://")
    if separator and scheme not in ("all", "https" if url.is_tls else "http"):
        return False
    try:
        # An address or a network in CIDR notation, as Go and curl read NO_PROXY.
        return ip_address(url.host) in ip_network(rest.strip("[]"), strict=False)
    except ValueError:
        pass
    host, separator, port = rest.rpartition(":")
    if separator and port.isdigit() and (":" not in host or host.endswith("]")):
        if int(port) != url.port:
            return False
        rest = host
    rest = rest.strip("[]")
    if rest.startswith(("*.", ".")):
        return url.host.endswith(rest.removeprefix("*"))
    return url.host == rest or url.host.endswith(f".{rest}")
