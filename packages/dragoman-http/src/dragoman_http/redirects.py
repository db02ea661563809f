"""Redirects: where they lead, and requests that follow a bounded number of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urljoin

from .errors import InvalidRedirect
from .response import HttpResponse
from .transport import HttpTransport
from .urls import Url, parse_url

_STATUSES = frozenset({301, 302, 303, 307, 308})
_CREDENTIALS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-goog-api-key"}
)


def find_redirect(response: HttpResponse, url: str) -> str | None:
    """Return the URL to which a response of `url` redirects; None if it is no redirect.

    Raises:
        ValueError: the location is not a valid http or https URL.
    """
    location = response.headers.get("location")
    if response.status not in _STATUSES or location is None:
        return None
    # Headers are read as Latin-1, but locations that are not ASCII are UTF-8.
    with suppress(UnicodeDecodeError):
        location = location.encode("latin-1").decode()
    target = urljoin(url, location)
    parse_url(target)
    return target


async def get_following_redirects(
    transport: HttpTransport,
    url: str,
    headers: Mapping[str, str],
    *,
    max_redirects: int,
    read_timeout: float | None = None,
) -> HttpResponse:
    """Send a GET request, follow its redirects, and return the first response that is
    none. Credentials are sent to the first URL's origin alone.

    Raises:
        InvalidRedirect: a redirect cannot be followed, or there are too many.
        HttpClientError: a request has no response.
        ValueError: the URL or a header is malformed.
    """
    origin = parse_url(url)
    for _ in range(max_redirects + 1):
        response = await transport.send("GET", url, headers, read_timeout=read_timeout)
        try:
            target = find_redirect(response, url)
        except ValueError as error:
            response.close()
            raise InvalidRedirect(f"the redirect cannot be followed: {error}") from None
        if target is None:
            return response
        response.close(drain=True)
        url = target
        if not _may_keep_credentials(origin, parse_url(url)):
            headers = {
                name: value for name, value in headers.items() if name.lower() not in _CREDENTIALS
            }
    raise InvalidRedirect(f"there were more than {max_redirects} redirects")


def _may_keep_credentials(origin: Url, target: Url) -> bool:
    """Whether a URL has the same origin, or is the same host's with TLS."""
    is_upgrade = (origin.is_tls, origin.port, target.is_tls, target.port) == (False, 80, True, 443)
    is_same = (origin.is_tls, origin.port) == (target.is_tls, target.port)
    return origin.host == target.host and (is_same or is_upgrade)
