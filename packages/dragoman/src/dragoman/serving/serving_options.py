"""Options of the HTTP API: its settings, with values computed from other settings."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.server_tools import HostedTarget
from ..dialects.interfaces import Profile
from ..settings import ServingSettings
from .cors import CorsPolicy
from .stream_keepalive import StreamTimeouts


class ServingOptions(ServingSettings, frozen=True, kw_only=True):
    """Options of the HTTP API: its own settings, and values computed from other
    settings.

    bind: address to listen on; None for a Unix socket.
    max_sockets: concurrent WebSockets.
    socket_lifetime: seconds after which a WebSocket is closed.
    ui: serve the page at `/ui`, and keep a summary of the last requests for it.
    hosted_tools: as in `ReaderOptions`.
    """

    profile: Profile = Profile.OPENAI
    bind: str | None = "127.0.0.1"
    cors: CorsPolicy = CorsPolicy()
    hosted_tools: Mapping[str, HostedTarget] = {}
    timeouts: StreamTimeouts = StreamTimeouts()
    max_sockets: int = 1024
    socket_lifetime: float = 3600.0
    ui: bool = False

    @property
    def observes_calls(self) -> bool:
        """Whether the access log needs a record of each call, even without a request
        log or keys.
        """
        return self.access_log and self.log_format == "json"
