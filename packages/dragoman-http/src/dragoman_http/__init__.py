"""An HTTP/1.1 client for asyncio that is made for streamed responses.

`HttpClient` sends requests on pooled connections, and returns each `HttpResponse` when
its head has arrived. The body is read in pieces as they arrive, or passed to a
callback. llhttp parses the responses; malformed ones raise an error rather than being
guessed at.

These names are the public interface; the modules are internal.
"""

from .client import ClientTimeouts, HttpClient
from .errors import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    HttpClientError,
    InvalidResponse,
    ResponseTimeout,
)
from .proxies import ProxyRules
from .response import HttpResponse, PieceReceiver

__all__ = [
    "ClientClosed",
    "ClientTimeouts",
    "ConnectFailed",
    "ConnectionLost",
    "HttpClient",
    "HttpClientError",
    "HttpResponse",
    "InvalidResponse",
    "PieceReceiver",
    "ProxyRules",
    "ResponseTimeout",
]
