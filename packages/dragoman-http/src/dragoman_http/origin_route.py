"""The destination of connections to an origin, directly or through a proxy."""

from __future__ import annotations

from msgspec import Struct

from .proxies import Proxy
from .urls import Url


class OriginRoute(Struct, frozen=True):
    """The destination of connections to an origin; the key of the pool.

    proxy: None for a direct connection.
    uds: path of a Unix socket to connect to instead of the host.
    address: IP address to connect to instead of resolving the host.
    """

    is_tls: bool
    host: str
    port: int
    proxy: Proxy | None = None
    uds: str | None = None
    address: str | None = None

    @property
    def is_forwarded(self) -> bool:
        """Whether a proxy forwards the requests: their target is then the whole URL
        (RFC 9112, 3.2.2).
        """
        return self.proxy is not None and not self.is_tls


def build_route(
    url: Url, proxy: Proxy | None, uds: str | None, address: str | None = None
) -> OriginRoute:
    # A proxy would resolve the host itself.
    if uds is not None or address is not None:
        proxy = None
    return OriginRoute(url.is_tls, url.host, url.port, proxy, uds, address)
