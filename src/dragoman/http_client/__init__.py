"""An HTTP/1.1 client for streams: pooled connections, llhttp as the parser, and no coroutine for a piece of a body."""

from .client import ClientTimeouts, HttpClient
from .response import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    HttpClientError,
    HttpResponse,
    InvalidResponse,
    ResponseTimeout,
)
from .urls import ProxyRules

__all__ = [
    "ClientClosed",
    "ClientTimeouts",
    "ConnectFailed",
    "ConnectionLost",
    "HttpClient",
    "HttpClientError",
    "HttpResponse",
    "InvalidResponse",
    "ProxyRules",
    "ResponseTimeout",
]
