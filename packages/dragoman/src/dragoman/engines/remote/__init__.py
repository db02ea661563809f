"""An engine in its own process, shared by several front ends: the server, and the
client in each front end.

They communicate over a Unix socket. Only the processes of one server on one machine use
it, so the protocol has neither versions nor authentication: the socket is in a
directory that only this user can access.
"""

from .client import EngineClient
from .messages import EngineChanges, EngineDescription
from .server import EngineServer, HostedAdapters, HostedEngine

__all__ = [
    "EngineChanges",
    "EngineClient",
    "EngineDescription",
    "EngineServer",
    "HostedAdapters",
    "HostedEngine",
]
