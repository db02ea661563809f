"""An engine that forwards requests to another server: OpenAI-compatible, or with the
Messages or Responses API.

All APIs of this server work with it.
"""

from .control import UpstreamControl
from .discovery import DiscoveredModel, ModelTasks, discover
from .engine import UpstreamConfig, UpstreamEngine
from .server_kinds import KINDS, ServerKind, Wire, find_kind_by_host
from .shared_encoding import UpstreamDefaults
from .upstream_server import Upstream

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
