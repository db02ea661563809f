"""Whether the library of an engine knows a model's architecture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core.errors import EngineError

# Quoted identifiers in Python source, such as the keys of a registry.
_NAME = re.compile(r"""["']([A-Za-z][\w.-]*)["']""")


MIN_NAMES = 50
"""With fewer names than this, the library's layout has changed, and its list is not
used.
"""


class ArchitectureConfig(msgspec.Struct):
    """The fields of config.json by which libraries choose a model's code.

    auto_map, model_file: code in the model's own repository.
    """

    model_type: str = ""
    architectures: tuple[str, ...] | None = None
    auto_map: dict[str, object] | None = None
    model_file: str | None = None


class Library(Struct, frozen=True):
    """The library of an engine.

    distribution: the name under which pip installs it.
    supports: whether it supports a model; true if that is unknown.
    has_code: whether the model's repository has code that the library runs.
    """

    distribution: str
    supports: Callable[[ArchitectureConfig], bool]
    has_code: Callable[[ArchitectureConfig], bool] = lambda config: bool(config.auto_map)


def check_library_support(
    library: Library, config: bytes, source: str, *, trust_remote_code: bool
) -> None:
    """Check that the library of an engine knows the architecture of a model.

    config: the content of config.json.
    source: names the model in messages.

    Raises:
        EngineError: the library does not.
    """
    try:
        decoded = msgspec.json.decode(config, type=ArchitectureConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"{source}: {error}") from error
    has_code = library.has_code(decoded)
    if (has_code and trust_remote_code) or library.supports(decoded):
        return
    name = library.distribution
    try:
        installed = f"{name} {version(name)}"
    except PackageNotFoundError:
        installed = name
    architecture = decoded.architectures[0] if decoded.architectures else "no architecture"
    if has_code:
        remedy = "its repository has code for it, which --trust-remote-code runs if you trust it"
    else:
        remedy = f"upgrade it (pip install --upgrade {name}), or choose another model"
    raise EngineError(
        f"{source}: the model type {decoded.model_type!r} ({architecture}) is not supported by "
        f"the installed "
        f"{installed}; {remedy}"
    )


def check_directory_support(
    library: Library, directory: Path, source: str, *, trust_remote_code: bool
) -> None:
    """Check that a library knows the architecture of the model in a directory. See
    `check_library_support`.
    """
    config = (directory / "config.json").read_bytes()
    check_library_support(library, config, source, trust_remote_code=trust_remote_code)


def knows(known: frozenset[str] | None, names: Iterable[str]) -> bool:
    """Whether a library's names contain one of a model's; true if either are unknown."""
    names = [name for name in names if name]
    return known is None or not names or not known.isdisjoint(names)


def read_names(package: str, pattern: str) -> frozenset[str] | None:
    """Return the quoted names in the files of a package; None if there are fewer than
    `MIN_NAMES`.
    """
    root = find_root(package)
    files = [] if root is None else sorted(root.glob(pattern))
    names = frozenset(
        name for file in files for name in _NAME.findall(file.read_text(encoding="utf-8"))
    )
    return names if len(names) >= MIN_NAMES else None


def find_root(package: str) -> Path | None:
    """Find the directory of a package without importing it; None if it is not installed."""
    spec = find_spec(package)
    locations = None if spec is None else spec.submodule_search_locations
    return None if not locations else Path(next(iter(locations)))
