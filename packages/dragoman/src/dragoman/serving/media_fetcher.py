"""Fetching of media from URLs in requests, from public internet addresses only.

Clients must not use this server to reach internal hosts (SSRF: CVE-2025-6242,
CVE-2026-33626). A name is resolved once, all its addresses must be public, the
connection uses the checked address (no DNS rebinding), and each redirect is checked
like a new URL.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from dragoman_http import (
    ClientTimeouts,
    HttpClient,
    HttpClientError,
    HttpResponse,
    HttpTransport,
    ProxyRules,
    Url,
    build_tls_context,
    find_redirect,
    parse_url,
)

from .._version import VERSION
from ..core.errors import RequestError
from ..core.image_header import MAX_BYTES
from ..dialects.field_errors import abbreviate

Address = IPv4Address | IPv6Address


ResolveHost = Callable[[str, int], Awaitable[list[str]]]
"""Resolves a host to addresses for connections to a port. Raises OSError if there are
none.
"""


MAX_REDIRECTS = 3


TIMEOUT = 10.0
"""Seconds for a fetch, including redirects."""


# Some hosts, such as Wikimedia's, reject requests that do not name their program.
_REQUEST_HEADERS = {"accept": "*/*", "user-agent": f"dragoman/{VERSION}"}


_GLOBAL = IPv6Network("2000::/3")
"""Global unicast (RFC 4291); other prefixes can contain mapped IPv4, link-local or
site-local addresses.
"""


_NOT_PUBLIC = tuple(
    ip_network(network)
    for network in (
        "192.0.0.0/24",  # IETF protocol assignments (RFC 6890)
        "192.88.99.0/24",  # 6to4 relays, deprecated (RFC 7526)
        "2001::/23",  # IETF protocol assignments, Teredo among them (RFC 2928)
        "2001:db8::/32",  # documentation (RFC 3849)
        "2002::/16",  # 6to4 (RFC 3056)
        "3fff::/20",  # documentation (RFC 9637)
    )
)
"""Networks without public hosts that `ipaddress` counts as global, at least in some
versions.

https://www.iana.org/assignments/iana-ipv6-special-registry/
"""


class Fetcher:
    """Fetches URLs with checks against SSRF.

    hosts: patterns of host names, one of which must match; empty allows any host.
    resolve: resolves host names; None means the system's resolver.
    is_allowed: returns whether an address may be connected to; None means `is_public`.
    timeout: seconds for one fetch, including redirects.
    transport: sends the requests; None means the network.
    """

    def __init__(
        self,
        hosts: tuple[str, ...] = (),
        *,
        resolve: ResolveHost | None = None,
        is_allowed: Callable[[Address], bool] | None = None,
        timeout: float = TIMEOUT,
        transport: HttpTransport | None = None,
    ) -> None:
        # Host names are case-insensitive; those of URLs are compared as DNS knows them.
        self._hosts = tuple(
            host.lower() if host.isascii() else host.encode("idna").decode() for host in hosts
        )
        self._resolve = resolve or resolve_addresses
        self._is_allowed = is_allowed or is_public
        self._timeout = timeout
        self._transport = transport

    async def fetch(self, url: str, param: str) -> bytes:
        """Return the content at `url`.

        param: the field of the request that errors name.

        Raises:
            RequestError: the URL is not allowed, or the download failed.
        """
        transport = self._transport or HttpClient(
            ClientTimeouts(self._timeout, self._timeout),
            # A proxy from the environment would connect to an unchecked address.
            proxies=ProxyRules({}),
            tls_context=self._tls_context,
            # A small download could decompress to a large one.
            decodes_bodies=False,
        )
        try:
            async with asyncio.timeout(self._timeout):
                return await self._follow_redirects(transport, url, param)
        except (TimeoutError, HttpClientError, OSError, UnicodeError):
            raise _build_download_error(param, f"{abbreviate(url)} could not be fetched") from None
        finally:
            if transport is not self._transport:
                await transport.close()

    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        # Reading the certificates of all authorities blocks the event loop for 30 ms.
        return build_tls_context()

    async def _follow_redirects(self, transport: HttpTransport, url: str, param: str) -> bytes:
        current_url = url
        # Not by `get_following_redirects`, which would not check the next address.
        for _ in range(MAX_REDIRECTS + 1):
            address = await self._find_address(_parse_media_url(current_url, param), param)
            # The checked address itself, so that no second resolution can differ (DNS
            # rebinding).
            response = await transport.send(
                "GET", current_url, _REQUEST_HEADERS, connect_to=str(address)
            )
            try:
                target = find_redirect(response, current_url)
                if target is None:
                    return await _read_content(response, url, param)
                current_url = target
            except ValueError:
                raise _build_invalid_url_error(
                    param, f"{abbreviate(url)} redirects to an invalid URL"
                ) from None
            finally:
                response.close()
        raise _build_download_error(param, f"{abbreviate(url)} redirects too often")

    async def _find_address(self, url: Url, param: str) -> Address:
        """Resolve a URL's host to an address that may be connected to."""
        host = url.host
        if self._hosts and not any(fnmatchcase(host, pattern) for pattern in self._hosts):
            raise _build_invalid_url_error(
                param, f"this server does not fetch from {abbreviate(host)}"
            )
        resolved = [ip_address(text) for text in await self._resolve(host, url.port)]
        # All addresses must be allowed: a host with one internal address is suspicious.
        if not resolved or not all(map(self._is_allowed, resolved)):
            raise _build_invalid_url_error(param, f"{abbreviate(host)} is not a public host")
        return resolved[0]


def is_public(address: Address) -> bool:
    """Whether the address is public: not local or private, and not an IPv6 address that
    embeds an IPv4 one.
    """
    if any(address in network for network in _NOT_PUBLIC) or (
        address.version == 6 and address not in _GLOBAL
    ):
        return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified
    )


async def resolve_addresses(host: str, port: int) -> list[str]:
    """Implements `ResolveHost` with the system's resolver."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in infos]


def _parse_media_url(url: str, param: str) -> Url:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _build_invalid_url_error(param, f"{abbreviate(url)} is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise _build_invalid_url_error(param, "only http and https URLs of named hosts are fetched")
    # https://trusted@evil.example looks like another host than it is, and credentials
    # would be sent to any host.
    if "@" in parts.netloc:
        raise _build_invalid_url_error(
            param, "a URL with a user or a password in it is not fetched"
        )
    try:
        parsed = parse_url(url)
    except ValueError:
        raise _build_invalid_url_error(param, f"{abbreviate(url)} is not a URL") from None
    # `%` begins a zone id, which names a local interface.
    if "%" in parsed.host:
        raise _build_invalid_url_error(param, "only http and https URLs of named hosts are fetched")
    return parsed


async def _read_content(response: HttpResponse, url: str, param: str) -> bytes:
    """Read the body as sent; nothing is decompressed."""
    if response.status != 200:
        raise _build_download_error(param, f"{abbreviate(url)} returned HTTP {response.status}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _build_download_error(
            param, f"{abbreviate(url)} sent a compressed response, which was not requested"
        )
    # Content-Length cannot be trusted, so the bytes are counted.
    content = await response.read_all(MAX_BYTES)
    if len(content) > MAX_BYTES:
        raise RequestError(
            f"The content of {abbreviate(url)} has more than {MAX_BYTES} bytes.",
            param=param,
            code="image_too_large",
        )
    return content


def _build_invalid_url_error(param: str, reason: str) -> RequestError:
    return RequestError(
        f"Invalid value for '{param}': {reason}.", param=param, code="invalid_image_url"
    )


def _build_download_error(param: str, reason: str) -> RequestError:
    return RequestError(
        f"Invalid value for '{param}': {reason}.", param=param, code="failed_to_download_image"
    )
