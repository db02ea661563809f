"""One upstream server: its URL, its credentials, the headers that carry them."""

from __future__ import annotations

from msgspec import Struct

from .server_kind import ServerKind


class Upstream(Struct, frozen=True):
    """One upstream server.

    url: base URL, without `/chat/completions`.
    weight: relative share of new conversations.
    key: bearer token; never logged.
    """

    url: str
    weight: float = 1.0
    key: str | None = None

    def __repr__(self) -> str:
        return f"Upstream({self.url!r})"


def build_auth_headers(upstream: Upstream, kind: ServerKind | None = None) -> dict[str, str]:
    """Build the authentication headers for an upstream of this kind, with the headers
    that its API always needs.
    """
    headers = {} if kind is None else dict(kind.api.headers)
    name = None if kind is None else kind.api.key_header
    if upstream.key is None:
        return headers
    if name is None:
        return {**headers, "authorization": f"Bearer {upstream.key}"}
    return {**headers, name: upstream.key}
