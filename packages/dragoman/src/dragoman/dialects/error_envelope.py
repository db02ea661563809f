"""A dialect's error format, and what tells its clients from others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from ..core.errors import DragomanError
from .interfaces import Profile
from .rate_limit_headers import Headers, RateLimitState, render_openai_rate_limits


def get_status(error: DragomanError) -> int:
    return error.status


class ErrorEnvelope(Struct, frozen=True, kw_only=True):
    """A dialect's error format.

    name: the name in the docs.
    body: the type of the body.
    render: renders the body from an error, the request's id and the server's profile.
    map_status: maps an error to the dialect's HTTP status.
    render_rate_limits: renders the headers that report the limits of a key, at a Unix
        time.
    key_header: the header in which the dialect's clients send a key, if it is not a
        bearer token.
    key_parameter: the query parameter in which they may send it.
    client_headers: headers of the vendor's own clients, by which they are recognized on
        paths that several vendors have.
    clients: the envelopes for recognized clients, on such a path.
    """

    name: str
    body: type[Struct]
    render: Callable[[DragomanError, str, Profile], bytes]
    map_status: Callable[[DragomanError], int] = get_status
    render_rate_limits: Callable[[Sequence[RateLimitState], float], Headers] = (
        render_openai_rate_limits
    )
    key_header: str | None = None
    key_parameter: str | None = None
    client_headers: tuple[str, ...] = ()
    clients: tuple[ErrorEnvelope, ...] = ()

    def resolve(self, headers: Mapping[str, str]) -> ErrorEnvelope:
        """Return the envelope for a request with these headers."""
        for envelope in self.clients:
            if envelope.is_sent_by_client(headers):
                return envelope
        return self

    def is_sent_by_client(self, headers: Mapping[str, str]) -> bool:
        """Whether the vendor's own client has sent a request with these headers."""
        return any(name in headers for name in self.client_headers)
