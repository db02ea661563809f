"""The proxies of the environment: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from .urls import Url

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Proxy(Struct, frozen=True):
    """An HTTP proxy.

    is_tls: whether the connection to the proxy uses TLS.
    authorization: value of Proxy-Authorization; None without credentials.
    """

    is_tls: bool
    host: str
    port: int
    authorization: str | None = None

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


class ProxyRules:
    """The proxies of an environment.

    settings: in the form of `urllib.request.getproxies`: URLs by `http`, `https` and
        `all`, the exceptions by `no`. None means those of the environment.

    Raises:
        ValueError: a proxy's URL is invalid, or its scheme is not supported.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        variables = _read_environment() if settings is None else settings
        self._proxies: dict[str, Proxy] = {}
        for scheme in ("http", "https", "all"):
            text = variables.get(scheme)
            if not text:
                continue
            parts = urlsplit(text if "://" in text else f"http://{text}")
            if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
                raise ValueError(
                    f"a proxy must have the form http://HOST:PORT or https://HOST:PORT, not "
                    f"{parts.scheme}://"
                )
            authorization = None
            if parts.username is not None:
                credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
                authorization = f"Basic {base64.b64encode(credentials).decode()}"
            port = parts.port or _DEFAULT_PORTS[parts.scheme]
            self._proxies[scheme] = Proxy(
                parts.scheme == "https", parts.hostname, port, authorization
            )
        self._exceptions = [
            entry.strip().lower() for entry in variables.get("no", "").split(",") if entry.strip()
        ]

    def find(self, url: Url) -> Proxy | None:
        """Return the proxy of a URL; None for a direct connection."""
        proxy = self._proxies.get("https" if url.is_tls else "http") or self._proxies.get("all")
        if proxy is None or any(_matches(entry, url) for entry in self._exceptions):
            return None
        return proxy


def _read_environment() -> Mapping[str, str]:
    # Imports `http.client` and `email`, for which no server at its start has another use.
    from urllib.request import getproxies  # noqa: PLC0415

    return getproxies()


def _matches(entry: str, url: Url) -> bool:
    """Whether an entry of NO_PROXY names the URL's host.

    As in curl, `example.com` includes its subdomains, while `.example.com` and
    `*.example.com` match only those. An address may have a prefix length. `*` matches
    every host. A port or a scheme restricts the entry.
    """
    if entry == "*":
        return True
    scheme, separator, pattern = entry.rpartition("://")
    if separator and scheme not in ("all", "https" if url.is_tls else "http"):
        return False
    try:
        # An address or a network in CIDR notation, as Go and curl read NO_PROXY.
        return ip_address(url.host) in ip_network(pattern.strip("[]"), strict=False)
    except ValueError:
        pass
    host, separator, port = pattern.rpartition(":")
    if separator and port.isdigit() and (":" not in host or host.endswith("]")):
        if int(port) != url.port:
            return False
        pattern = host
    pattern = pattern.strip("[]")
    if pattern.startswith(("*.", ".")):
        return url.host.endswith(pattern.removeprefix("*"))
    return url.host == pattern or url.host.endswith(f".{pattern}")
