"""An engine that forwards requests to another server: OpenAI-compatible, or with the
Messages or Responses API.

All APIs of this server work with it.
"""

from .discovery import (
    DiscoveredModel,
    KINDS,
    ModelTasks,
    ServerKind,
    Upstream,
    Wire,
    discover,
    find_kind_by_host,
)
from .encode import UpstreamDefaults
from .engine import UpstreamConfig, UpstreamEngine
from .pool import UpstreamControl

__all__ = [
    "KINDS",
    "DiscoveredModel",
    "ModelTasks",
    "ServerKind",
    "Upstream",
    "UpstreamConfig",
    "UpstreamControl",
    "UpstreamDefaults",
    "UpstreamEngine",
    "Wire",
    "discover",
    "find_kind_by_host",
]
