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

import httpx2

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
    transport: connects to addresses; None means the network.
    """

    def __init__(
        self,
        hosts: tuple[str, ...] = (),
        *,
        resolve: ResolveHost | None = None,
        is_allowed: Callable[[Address], bool] | None = None,
        timeout: float = TIMEOUT,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        # Host names are case-insensitive.
        self._hosts = tuple(host.lower() for host in hosts)
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
        # A proxy from the environment would connect to an unchecked address.
        client = httpx2.AsyncClient(
            transport=self._transport,
            timeout=self._timeout,
            trust_env=False,
            verify=self._tls_context if self._transport is None else True,
        )
        try:
            async with asyncio.timeout(self._timeout), client:
                return await self._follow_redirects(client, url, param)
        except (TimeoutError, httpx2.HTTPError, OSError, UnicodeError):
            raise _build_download_error(param, f"{abbreviate(url)} could not be fetched") from None

    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        # Reading the certificates of all authorities blocks the event loop for 30 ms.
        return httpx2.create_ssl_context(trust_env=False)

    async def _follow_redirects(self, client: httpx2.AsyncClient, url: str, param: str) -> bytes:
        current_url = url
        # Not by the client, which would follow a redirect without checking its address.
        for _ in range(MAX_REDIRECTS + 1):
            request = await self._build_request(client, current_url, param)
            response = await client.send(request, stream=True)
            try:
                if not response.has_redirect_location:
                    return await _read_content(response, url, param)
                current_url = str(httpx2.URL(current_url).join(response.headers["location"]))
            except httpx2.InvalidURL:
                raise _build_invalid_url_error(
                    param, f"{abbreviate(url)} redirects to an invalid URL"
                ) from None
            finally:
                await response.aclose()
        raise _build_download_error(param, f"{abbreviate(url)} redirects too often")

    async def _build_request(
        self, client: httpx2.AsyncClient, url: str, param: str
    ) -> httpx2.Request:
        """Build a request to the checked address, with the URL's host name in Host and
        SNI.
        """
        try:
            parsed = httpx2.URL(url)
        except httpx2.InvalidURL:
            raise _build_invalid_url_error(param, f"{abbreviate(url)} is not a URL") from None
        # `%` begins a zone id, which names a local interface.
        if parsed.scheme not in ("http", "https") or not parsed.host or "%" in parsed.host:
            raise _build_invalid_url_error(
                param, "only http and https URLs of named hosts are fetched"
            )
        # https://trusted@evil.example looks like another host than it is, and
        # credentials would be sent to any host.
        if parsed.userinfo:
            raise _build_invalid_url_error(
                param, "a URL with a user or a password in it is not fetched"
            )
        host = parsed.host
        port = parsed.port or (443 if parsed.scheme == "https" else 80)
        if self._hosts and not any(fnmatchcase(host.lower(), pattern) for pattern in self._hosts):
            raise _build_invalid_url_error(
                param, f"this server does not fetch from {abbreviate(host)}"
            )
        resolved = [ip_address(text) for text in await self._resolve(host, port)]
        # All addresses must be allowed: a host with one internal address is suspicious.
        if not resolved or not all(map(self._is_allowed, resolved)):
            raise _build_invalid_url_error(param, f"{abbreviate(host)} is not a public host")
        return client.build_request(
            "GET",
            # The checked address itself, so that no second resolution can differ (DNS
            # rebinding).
            parsed.copy_with(host=str(resolved[0]), fragment=None),
            # Not compressed, since a small download could decompress to a large one.
            headers={
                "host": parsed.netloc.decode("ascii"),
                "accept": "*/*",
                "accept-encoding": "identity",
            },
            extensions={"sni_hostname": parsed.raw_host.decode("ascii")},
        )


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


async def _read_content(response: httpx2.Response, url: str, param: str) -> bytes:
    """Read the body as sent; nothing is decompressed."""
    if response.status_code != 200:
        raise _build_download_error(
            param, f"{abbreviate(url)} returned HTTP {response.status_code}"
        )
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _build_download_error(
            param, f"{abbreviate(url)} sent a compressed response, which was not requested"
        )
    chunks: list[bytes] = []
    size = 0
    # Content-Length cannot be trusted, so the bytes are counted.
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MAX_BYTES:
            raise RequestError(
                f"The content of {abbreviate(url)} has more than {MAX_BYTES} bytes.",
                param=param,
                code="image_too_large",
            )
        chunks.append(chunk)
    return b"".join(chunks)


def _build_invalid_url_error(param: str, reason: str) -> RequestError:
    return RequestError(
        f"Invalid value for '{param}': {reason}.", param=param, code="invalid_image_url"
    )


def _build_download_error(param: str, reason: str) -> RequestError:
    return RequestError(
        f"Invalid value for '{param}': {reason}.", param=param, code="failed_to_download_image"
    )
