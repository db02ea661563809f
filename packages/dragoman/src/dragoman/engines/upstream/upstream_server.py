"""One upstream server: its URL, its credentials, the headers that carry them."""

from __future__ import annotations

from msgspec import Struct

from .server_kinds import ServerKind, Wire

ANTHROPIC_VERSION = "2023-06-01"


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
    """Build the authentication headers for an upstream of this kind, with Anthropic's
    version header.
    """
    if kind is not None and kind.wire is Wire.GEMINI:
        return {} if upstream.key is None else {"x-goog-api-key": upstream.key}
    if kind is not None and kind.wire is Wire.MESSAGES:
        key_header = {} if upstream.key is None else {"x-api-key": upstream.key}
        return {"anthropic-version": ANTHROPIC_VERSION, **key_header}
    return {} if upstream.key is None else {"authorization": f"Bearer {upstream.key}"}
