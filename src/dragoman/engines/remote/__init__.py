"""An engine in a process of its own, which several front ends share: its server, and a client for each front end.

They talk over a Unix socket. Only processes of one server on one machine use it, so it has no versions and no keys: the
socket is in a directory of the user. Independent of the engine, of HTTP and of how the processes are started.
"""

from .client import EngineClient
from .messages import EngineChanges, EngineDescription
from .server import EngineServer, HostedAdapters, HostedEngine

__all__ = ["EngineChanges", "EngineClient", "EngineDescription", "EngineServer", "HostedAdapters", "HostedEngine"]
