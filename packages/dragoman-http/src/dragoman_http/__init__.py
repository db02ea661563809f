"""An HTTP/1.1 client for asyncio that is made for streamed responses.

`HttpClient` sends requests on pooled connections, and returns each `HttpResponse` when
its head has arrived. The body is read in pieces as they arrive, or passed to a
callback. llhttp parses the responses; malformed ones raise an error rather than being
guessed at. `BlockingHttpClient` does the same for code without an event loop.

These names are the public interface; the modules are internal.
"""

from .blocking_client import BlockingHttpClient, BlockingResponse
from .client import ClientTimeouts, HttpClient
from .errors import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    HttpClientError,
    InvalidRedirect,
    InvalidResponse,
    ResponseTimeout,
)
from .proxies import ProxyRules
from .redirects import find_redirect, get_following_redirects
from .response import HttpResponse, PieceReceiver
from .sse_decoder import SseDecoder
from .tls_context import build_tls_context
from .transport import HeaderFields, HttpTransport
from .urls import Url, parse_url

__all__ = [
    "BlockingHttpClient",
    "BlockingResponse",
    "ClientClosed",
    "ClientTimeouts",
    "ConnectFailed",
    "ConnectionLost",
    "HeaderFields",
    "HttpClient",
    "HttpClientError",
    "HttpResponse",
    "HttpTransport",
    "InvalidRedirect",
    "InvalidResponse",
    "PieceReceiver",
    "ProxyRules",
    "ResponseTimeout",
    "SseDecoder",
    "Url",
    "build_tls_context",
    "find_redirect",
    "get_following_redirects",
    "parse_url",
]
