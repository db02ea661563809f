"""Dragoman on Ray Serve: `serve run dragoman.ray:app model=tiny replicas=2`. Ray is
imported on first use of `app`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .application import app

__all__ = ["app"]


def __getattr__(name: str) -> object:
    if name == "app":
        return import_module(".application", __name__).app
    raise AttributeError(f"module {__name__} has no attribute {name}")
