"""From settings to a running server: choose the engine, build the served model, print
the greeting and serve.

The only layer that depends on all others. One module per kind of engine, imported when
that engine is chosen.
"""

from .models import build_models
from .server import (
    Server,
    ShutdownConfig,
    build_greeting,
    build_serving_options,
    build_uvicorn_config,
    run,
)

__all__ = [
    "Server",
    "ShutdownConfig",
    "build_greeting",
    "build_models",
    "build_serving_options",
    "build_uvicorn_config",
    "run",
]
