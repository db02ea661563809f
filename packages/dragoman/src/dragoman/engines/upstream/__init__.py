"""An engine that forwards requests to another server: OpenAI-compatible, or with the
Messages or Responses API.

All APIs of this server work with it.
"""

from .control import UpstreamControl
from .discovery import DiscoveredModel, discover
from .engine import UpstreamConfig, UpstreamEngine
from .server_kind import ServerKind
from .server_kinds import KINDS, find_kind_by_url
from .upstream_models import ModelTasks
from .upstream_request import UpstreamDefaults
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
    "discover",
    "find_kind_by_url",
]
