"""Parsing of http or https URLs."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, urlsplit

from msgspec import Struct

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
        encoded = host.encode("idna")
        # The codec's older standard changes some letters, and with them the domain.
        if encoded.decode("idna") != host:
            raise ValueError(f"the host name {host!r} must be written in ASCII (xn--...)")
        host = encoded.decode()
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        raise ValueError(f"{parts.scheme}://{host} is not a valid http or https URL")
    if _VISIBLE.fullmatch(host) is None:
        raise ValueError("the host name contains invalid characters")
    is_tls = parts.scheme == "https"
    return Url(is_tls, host, parts.port or (443 if is_tls else 80), target)
