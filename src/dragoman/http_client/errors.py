"""The errors of the client.

HttpClientError
+- ConnectFailed      no connection: refused, unreachable, too slow, TLS or a proxy failed
+- ConnectionLost     the connection ended before the response did
+- ResponseTimeout    the server was silent, or took no more of the request, for too long
+- InvalidResponse    the response breaks HTTP, or exceeds a limit
+- ClientClosed       the client was closed
"""

from __future__ import annotations


class HttpClientError(Exception):
    """A request that has no response, or a response that is not complete."""


class ConnectFailed(HttpClientError):
    pass


class ConnectionLost(HttpClientError):
    """The connection ended.

    is_untouched: the request had not been written completely, and no byte of a response has arrived.
    """

    def __init__(self, message: str, *, is_untouched: bool = False) -> None:
        super().__init__(message)
        self.is_untouched = is_untouched


class ResponseTimeout(HttpClientError):
    pass


class InvalidResponse(HttpClientError):
    pass


class ClientClosed(HttpClientError):
    pass
