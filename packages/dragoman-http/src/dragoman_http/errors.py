"""The errors of the HTTP client."""

from __future__ import annotations


class HttpClientError(Exception):
    """The request got no response, or the response is not complete."""


class ConnectFailed(HttpClientError):
    """The connection could not be established."""


class ConnectionLost(HttpClientError):
    """The connection was closed.

    is_untouched: whether the request had not been written completely, and no byte of a
        response had arrived.
    """

    def __init__(self, message: str, *, is_untouched: bool = False) -> None:
        super().__init__(message)
        self.is_untouched = is_untouched


class ResponseTimeout(HttpClientError):
    """There was no progress for the read timeout."""


class InvalidResponse(HttpClientError):
    """The response is malformed or exceeds a limit."""


class InvalidRedirect(HttpClientError):
    """A redirect leads to no valid URL, or there are too many."""


class ClientClosed(HttpClientError):
    """The client was closed while the request was running."""
