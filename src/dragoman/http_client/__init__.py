"""An HTTP/1.1 client for streams: pooled connections, llhttp as the parser, and no coroutine for a piece of a body."""

from .client import ClientTimeouts, HttpClient
from .errors import ClientClosed, ConnectFailed, ConnectionLost, HttpClientError, InvalidResponse, ResponseTimeout
from .response import HttpResponse
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
