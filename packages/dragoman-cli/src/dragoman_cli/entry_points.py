"""The entry points of all installed packages, looked up once in a process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


def find_entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Find the entry points of a group, in the order of their names.

    Args:
        group: name of the group, such as `dragoman.commands`.
    """
    return _read_entry_points(tuple(sys.path)).get(group, ())


def load_entry_point(group: str, name: str) -> Any:  # noqa: ANN401 - what a package registered
    """Load the object that a package registered under this name; None if there is none."""
    point = next((point for point in find_entry_points(group) if point.name == name), None)
    return None if point is None else point.load()


# A lookup reads the metadata of every installed package, which takes milliseconds. The
# key is the search path: where that changes, other packages are installed.
@lru_cache(maxsize=1)
def _read_entry_points(path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:  # noqa: ARG001 - the key
    points = entry_points()
    return {
        group: tuple(sorted(points.select(group=group), key=lambda point: point.name))
        for group in points.groups
    }
