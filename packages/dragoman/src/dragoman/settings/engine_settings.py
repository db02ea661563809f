"""The settings that installed engines add to those of the server.

A package registers a frozen struct of settings, whose fields are annotated as those of
`Settings`, in the entry point group `dragoman.settings`, under its engine's name.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from msgspec import Struct

GROUP = "dragoman.settings"
"""The entry point group in which packages register the settings of their engines."""


@cache
def load_engine_settings() -> tuple[type[Struct], ...]:
    """Load the registered types of settings, in the order of their engines' names."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return tuple(point.load() for point in points)
