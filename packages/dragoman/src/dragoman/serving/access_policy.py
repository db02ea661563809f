"""The checks that every request passes before its handler, the same over HTTP as over
WebSocket.
"""

from __future__ import annotations

from msgspec import Struct
from starlette.datastructures import Headers

from ..core.errors import HeadersTooLarge
from .auth import Access, Keyring
from .cors import CorsPolicy
from .host_header import check_host

MAX_HEADERS = 100


class AccessPolicy(Struct, frozen=True):
    """The checks before a request reaches its handler, the same over HTTP and
    WebSocket.

    allowed_hosts: names allowed in the Host header, besides loopback.
    """

    keyring: Keyring
    allowed_hosts: tuple[str, ...]
    cors: CorsPolicy

    def check_headers(self, headers: Headers, *, requires_host: bool = True) -> None:
        """Check the number of headers and the Host header.

        requires_host: false for HTTP/1.0, which has no Host (RFC 9112, 3.2): load
            balancers probe with it, and no browser sends it.

        Raises:
            HeadersTooLarge: there are too many headers.
            RequestError, MisdirectedRequest: as `check_host`.
        """
        count = len(headers)
        if count > MAX_HEADERS:
            raise HeadersTooLarge(
                f"A request may have at most {MAX_HEADERS} headers; this one has {count}."
            )
        if requires_host or "host" in headers:
            check_host(headers, self.allowed_hosts)

    def check_origin(self, headers: Headers, access: Access, *, reads: bool = False) -> None:
        """Reject requests that pages of other origins cause, unless the route is
        public.

        reads: the request is a GET or HEAD, which a link on another page may cause,
            except on administrators' routes.

        Raises:
            PermissionDenied: the request comes from an origin that is not allowed.
        """
        if access is not Access.PUBLIC:
            is_admin = access is Access.ADMIN
            self.cors.check_origin(
                headers, by_name=is_admin, allow_navigation=reads and not is_admin
            )
