"""An engine over any OpenAI-compatible server; all dialects of this server work over it."""

from .control import UpstreamControl
from .discovery import DiscoveredModel, ModelTasks, discover
from .encode import UpstreamDefaults
from .engine import UpstreamConfig, UpstreamEngine
from .pool import Upstream
from .server_kinds import KINDS, ServerKind

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
]
