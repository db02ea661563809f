"""An engine over any OpenAI-compatible server; all dialects of this server work over it."""

from .discovery import KINDS, DiscoveredModel, ModelTasks, ServerKind, Upstream, Wire, discover, find_kind_by_host
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
