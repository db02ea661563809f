"""The configuration of uvicorn, with our HTTP and WebSocket protocols."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from ..core.trusted_proxies import TrustedProxies
from ..http.limits import HttpLimits
from ..http.server_connection import Http11ProtocolFactory
from ..settings import Settings


def build_uvicorn_config(
    app: ASGIApp, settings: Settings, tls: ssl.SSLContext | None = None
) -> uvicorn.Config:
    """Configure uvicorn, without its access log, which this server writes itself, and
    without the Server header.

    At log level info uvicorn is limited to warnings, since its startup message repeats
    the greeting.
    """
    return uvicorn.Config(
        app,
        uds=settings.uds,
        http=cast(
            "type[asyncio.Protocol]",
            Http11ProtocolFactory(
                HttpLimits(
                    connections=settings.max_connections,
                    per_address=settings.max_connections_per_address,
                    proxies=TrustedProxies(settings.forwarded_allow_ips),
                ),
                tls,
            ),
        ),
        ws=cast("type[asyncio.Protocol]", build_websocket_protocol),
        ws_max_size=settings.max_body_bytes,
        access_log=False,
        log_level="warning" if settings.log_level == "info" else settings.log_level,
        log_config=None,
        # Clients that probe a port find out by it what they talk to; the version would
        # only help attackers.
        server_header=False,
        headers=[("server", "dragoman")],
        # The application reads the headers of proxies, for WebSockets as well.
        proxy_headers=False,
        # Seconds. Requests have already ended by then; this bounds the rest of
        # uvicorn's shutdown.
        timeout_graceful_shutdown=2,
    )


def build_websocket_protocol(
    config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
) -> asyncio.Protocol:
    """Create the protocol of a WebSocket. The import is deferred, since most servers
    never see a WebSocket.
    """
    from .websocket import WebSocket  # noqa: PLC0415

    return WebSocket(config, server_state, app_state)
