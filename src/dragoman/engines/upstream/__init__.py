"""Any server that speaks OpenAI's API, as an engine of events: its dialects become all of ours."""

from .discovery import DiscoveredModel, discover
from .encode import UpstreamDefaults
from .engine import UpstreamConfig, UpstreamEngine
from .pool import Upstream
from .server_kinds import KINDS, ServerKind

__all__ = [
    "KINDS",
    "DiscoveredModel",
    "ServerKind",
    "Upstream",
    "UpstreamConfig",
    "UpstreamDefaults",
    "UpstreamEngine",
    "discover",
]
