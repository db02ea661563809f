"""From settings to a running server: choose the engine, build the served model, print
the greeting and serve.

The only layer that depends on all others. One module per kind of engine, imported when
that engine is chosen.
"""

from .configured_models import build_models
from .graceful_shutdown import Server, ShutdownConfig
from .greeting import build_greeting
from .server import run
from .server_assembly import build_serving_options
from .uvicorn_config import build_uvicorn_config

__all__ = [
    "Server",
    "ShutdownConfig",
    "build_greeting",
    "build_models",
    "build_serving_options",
    "build_uvicorn_config",
    "run",
]
