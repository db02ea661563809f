"""From settings to a running server: picks the engine, builds the model around it, says what it serves, serves.

The only layer that knows all the others. One module for each kind of engine, imported when it is chosen.
"""

from .models import build_models
from .server import Server, build_greeting, build_serving_options, build_uvicorn_config, run
from .shutdown import ShutdownConfig

__all__ = [
    "Server",
    "ShutdownConfig",
    "build_greeting",
    "build_models",
    "build_serving_options",
    "build_uvicorn_config",
    "run",
]
