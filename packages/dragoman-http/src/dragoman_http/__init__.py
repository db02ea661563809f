"""An HTTP/1.1 client for streamed responses: pooled connections, llhttp as the parser,
pieces of a body by callback.
"""

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
