"""From settings to a running server: choose the engine, build the served model, print
the greeting and serve.

The only layer that depends on all others. The engines in `engines` are found by their
entry points, as those of other packages are.

The names below are imported on first use: the specs of engines, which every command
loads, import modules of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configured_models import build_models as build_models
    from .graceful_shutdown import Server as Server
    from .graceful_shutdown import ShutdownConfig as ShutdownConfig
    from .greeting import build_greeting as build_greeting
    from .server import run as run
    from .server_assembly import build_serving_options as build_serving_options
    from .uvicorn_config import build_uvicorn_config as build_uvicorn_config

_MODULES = {
    "Server": "graceful_shutdown",
    "ShutdownConfig": "graceful_shutdown",
    "build_greeting": "greeting",
    "build_models": "configured_models",
    "build_serving_options": "server_assembly",
    "build_uvicorn_config": "uvicorn_config",
    "run": "server",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
