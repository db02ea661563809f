"""Which models the installed transformers, mlx-lm and vLLM support, read from their files without importing them.

An import takes seconds, and mlx-lm cannot be imported on every machine that downloads for it. Where the files are laid
out otherwise than expected, nothing is known, and the library finds out while it loads the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from ..core.errors import EngineError

_NAME = re.compile(r"""["']([A-Za-z][\w.-]*)["']""")
MIN_NAMES = 50
"""Fewer names than any version has: the files are laid out otherwise."""
_LIBRARIES = {"transformers": "transformers", "mlx": "mlx-lm", "vllm": "vllm"}


class _Config(msgspec.Struct):
    """What the libraries choose their code by. auto_map, model_file: code of the repository's own."""

    model_type: str = ""
    architectures: tuple[str, ...] | None = None
    auto_map: dict[str, object] | None = None
    model_file: str | None = None


def check_library_support(engine: str, config: bytes, source: str, *, trust_remote_code: bool) -> None:
    """Check that the library of an engine knows the architecture of a model.

    config: the content of config.json. source: names it in messages.

    Raises:
        EngineError: it does not.
    """
    try:
        decoded = msgspec.json.decode(config, type=_Config)
    except msgspec.DecodeError as error:
        raise EngineError(f"{source}: {error}") from error
    has_code = bool(decoded.model_file if engine == "mlx" else decoded.auto_map)
    if (has_code and trust_remote_code) or _is_supported(engine, decoded):
        return
    library = _LIBRARIES[engine]
    try:
        installed = f"{library} {version(library)}"
    except PackageNotFoundError:
        installed = library
    architecture = decoded.architectures[0] if decoded.architectures else "no architecture"
    if has_code:
        remedy = "its repository has code for it, which --trust-remote-code runs if you trust it"
    else:
        remedy = f"upgrade it (pip install --upgrade {library}), or choose another model"
    raise EngineError(
        f"{source}: the model type {decoded.model_type!r} ({architecture}) is not supported by the installed "
        f"{installed}; {remedy}"
    )


def _is_supported(engine: str, config: _Config) -> bool:
    """Whether the library supports the model; also true where that is not known."""
    match engine:
        case "transformers":
            return _knows(_find_transformers_types(), [config.model_type])
        case "mlx":
            # A module for each type, and utils.py maps other types to them.
            root, names = _find_root("mlx_lm"), _read_names("mlx_lm", "utils.py")
            modules = [] if root is None else [file.stem for file in root.glob("models/*.py")]
            known = None if names is None or len(modules) < MIN_NAMES else names.union(modules)
            return _knows(known, [config.model_type])
        case "vllm":
            # It runs what transformers alone knows, and plug-ins may add any architecture.
            return (
                bool(entry_points(group="vllm.general_plugins"))
                or _knows(_read_names("vllm", "model_executor/models/registry.py"), config.architectures or ())
                or (_find_root("transformers") is not None and _knows(_find_transformers_types(), [config.model_type]))
            )
        case _:
            return True


def _knows(known: frozenset[str] | None, names: Iterable[str]) -> bool:
    names = [name for name in names if name]
    return known is None or not names or not known.isdisjoint(names)


def _find_transformers_types() -> frozenset[str] | None:
    return _read_names("transformers", "models/auto/*.py")


def _read_names(package: str, pattern: str) -> frozenset[str] | None:
    """The names in quotes in the files of a package; None if there are none or too few."""
    root = _find_root(package)
    files = [] if root is None else sorted(root.glob(pattern))
    names = frozenset(name for file in files for name in _NAME.findall(file.read_text(encoding="utf-8")))
    return names if len(names) >= MIN_NAMES else None


def _find_root(package: str) -> Path | None:
    spec = find_spec(package)
    locations = None if spec is None else spec.submodule_search_locations
    return None if not locations else Path(next(iter(locations)))
