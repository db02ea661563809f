"""An HTTP/1.1 client for streamed responses: pooled connections, llhttp as the parser,
pieces of a body by callback.
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
from .response import HttpResponse

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
