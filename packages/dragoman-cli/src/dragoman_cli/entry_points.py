"""The entry points of all installed packages, looked up once in a process.

They are read from the packages' files, in the order and form of the [specification](
https://packaging.python.org/en/latest/specifications/entry-points/): to import
`importlib.metadata`, which parses e-mail headers, takes longer than to read them all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any, NamedTuple

_INFO_SUFFIXES = (".dist-info", ".egg-info")


class EntryPoint(NamedTuple):
    """An object that a package registered.

    name: its name in the group.
    value: where it is: `package.module:attribute`.
    """

    name: str
    value: str

    def load(self) -> Any:  # noqa: ANN401 - what a package registered
        """Import the object."""
        # Extras, such as `module:attribute [extra]`, are for installers.
        module, _, attributes = self.value.partition("[")[0].partition(":")
        found: Any = import_module(module.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            found = getattr(found, attribute)
        return found


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


# A lookup looks into every installed package, which takes milliseconds. The key is the
# search path: where that changes, other packages are installed.
@lru_cache(maxsize=1)
def _read_entry_points(path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    found = _list_entry_points(path) if _has_folders_only(path) else _list_with_finders()
    groups: dict[str, list[EntryPoint]] = {}
    for group, point in found:
        groups.setdefault(group, []).append(point)
    return {
        group: tuple(sorted(points, key=lambda point: point.name))
        for group, points in groups.items()
    }


def _has_folders_only(path: tuple[str, ...]) -> bool:
    """Whether all packages are installed in folders of the search path: none in an
    archive or by a finder of its own.
    """
    has_finders = any(
        finder is not PathFinder and hasattr(finder, "find_distributions")
        for finder in sys.meta_path
    )
    return not has_finders and not any(
        folder.endswith(".egg") or os.path.isfile(folder) for folder in path
    )


def _list_with_finders() -> Iterator[tuple[str, EntryPoint]]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - see the module's docstring

    points = entry_points()
    for group in points.groups:
        for point in points.select(group=group):
            yield group, EntryPoint(point.name, point.value)


def _list_entry_points(path: tuple[str, ...]) -> Iterator[tuple[str, EntryPoint]]:
    """List the entry points of all packages with their groups. Of a package that is
    installed twice, the first on the path counts.
    """
    packages: set[str] = set()
    for folder in path:
        try:
            names = os.listdir(folder or os.curdir)
        except OSError:
            continue
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix.lower() not in _INFO_SUFFIXES:
                continue
            # Names that differ only in runs of these characters are the same.
            package = "_".join(
                filter(None, stem.partition("-")[0].lower().replace(".", "_").split("_"))
            )
            if package not in packages:
                packages.add(package)
                yield from _read_file(os.path.join(folder, name, "entry_points.txt"))


def _read_file(path: str) -> Iterator[tuple[str, EntryPoint]]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    group = ""
    for line in map(str.strip, lines):
        name, is_pair, value = line.partition("=")
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
        elif is_pair and not line.startswith("#"):
            yield group, EntryPoint(name.strip(), value.strip())
