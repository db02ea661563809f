"""http and https URLs, and the proxies for them from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address, ip_network
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies

from msgspec import Struct

_DEFAULT_PORTS = {"http": 80, "https": 443}
_VISIBLE = re.compile(r"[!-~]*")
_ASCII = "".join(map(chr, range(0x21, 0x7F)))


class Url(Struct, frozen=True):
    """A parsed URL.

    host: in lower case, without the brackets of an IPv6 address.
    target: path and query, as in a request line.
    """

    is_tls: bool
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The value of the Host header: without the default port of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


@lru_cache(maxsize=256)
def parse_url(text: str) -> Url:
    """Parse an absolute http or https URL. Characters of path and query that are not
    ASCII are percent-encoded.

    Raises:
        ValueError: the URL is invalid, or has a user name.
    """
    parts = urlsplit(text)
    target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_ASCII)
    host = parts.hostname or ""
    if not host.isascii():
        host = host.encode("idna").decode()
    if parts.scheme not in ("http", "https") or not host or parts.username is not None:
        raise ValueError(f"{parts.scheme}://{host} is not a valid http or https URL")
    if _VISIBLE.fullmatch(host) is None:
        raise ValueError("the host name contains invalid characters")
    is_tls = parts.scheme == "https"
    return Url(is_tls, host, parts.port or (443 if is_tls else 80), target)


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
        variables = getproxies() if settings is None else settings
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
