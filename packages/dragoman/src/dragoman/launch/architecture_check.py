"""Whether the library of an engine knows a model's architecture."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from ..core.errors import EngineError
from .engine_choice import embeds_with_transformers

# Quoted identifiers in Python source, such as the keys of a registry.
_NAME = re.compile(r"""["']([A-Za-z][\w.-]*)["']""")


MIN_NAMES = 50
"""With fewer names than this, the library's layout has changed, and its list is not
used.
"""


_LIBRARIES = {"transformers": "transformers", "mlx": "mlx-lm", "vllm": "vllm"}


class _ArchitectureConfig(msgspec.Struct):
    """The fields of config.json by which libraries choose a model's code.

    auto_map, model_file: code in the model's own repository.
    """

    model_type: str = ""
    architectures: tuple[str, ...] | None = None
    auto_map: dict[str, object] | None = None
    model_file: str | None = None


def check_library_support(
    engine: str, config: bytes, source: str, *, trust_remote_code: bool
) -> None:
    """Check that the library of an engine knows the architecture of a model.

    config: the content of config.json.
    source: names the model in messages.

    Raises:
        EngineError: the library does not.
    """
    try:
        decoded = msgspec.json.decode(config, type=_ArchitectureConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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
        f"{source}: the model type {decoded.model_type!r} ({architecture}) is not supported by "
        f"the installed "
        f"{installed}; {remedy}"
    )


def _is_supported(engine: str, config: _ArchitectureConfig) -> bool:
    """Whether the library supports the model; true if that is unknown."""
    match engine:
        case "transformers":
            return _knows(_find_transformers_types(), [config.model_type])
        case "mlx":
            # mlx-lm has a module for each model type, and utils.py maps further types
            # to them.
            root = _find_root("mlx_lm")
            names = _read_names("mlx_lm", "utils.py")
            modules = [] if root is None else [file.stem for file in root.glob("models/*.py")]
            known = None if names is None or len(modules) < MIN_NAMES else names.union(modules)
            return _knows(known, [config.model_type])
        case "vllm":
            # vLLM also runs models that only transformers supports, and its plug-ins
            # may add any architecture.
            return (
                bool(entry_points(group="vllm.general_plugins"))
                or _knows(
                    _read_names("vllm", "model_executor/models/registry.py"),
                    config.architectures or (),
                )
                or (
                    _find_root("transformers") is not None
                    and _knows(_find_transformers_types(), [config.model_type])
                )
            )
        case _:
            return True


def _knows(known: frozenset[str] | None, names: Iterable[str]) -> bool:
    names = [name for name in names if name]
    return known is None or not names or not known.isdisjoint(names)


def _find_transformers_types() -> frozenset[str] | None:
    return _read_names("transformers", "models/auto/*.py")


def _read_names(package: str, pattern: str) -> frozenset[str] | None:
    """Return the quoted names in the files of a package; None if there are fewer than
    `MIN_NAMES`.
    """
    root = _find_root(package)
    files = [] if root is None else sorted(root.glob(pattern))
    names = frozenset(
        name for file in files for name in _NAME.findall(file.read_text(encoding="utf-8"))
    )
    return names if len(names) >= MIN_NAMES else None


def _find_root(package: str) -> Path | None:
    spec = find_spec(package)
    locations = None if spec is None else spec.submodule_search_locations
    return None if not locations else Path(next(iter(locations)))


def check_architecture(
    engine: str, directory: Path, source: str, *, trust_remote_code: bool = False
) -> None:
    """Raise EngineError if an engine, or the library that it runs, does not support the
    model.

    source: names the model in messages.
    """
    match engine:
        case "tiny":
            from ..engines.tiny.llama_config import read_config  # noqa: PLC0415 - numpy takes long to import

            read_config(directory / "config.json")
        case "encoder" if embeds_with_transformers(directory):
            config = (directory / "config.json").read_bytes()
            check_library_support(
                "transformers", config, source, trust_remote_code=trust_remote_code
            )
        case "encoder":
            from ..engines.encoder_config import read_config as read_encoder  # noqa: PLC0415 - as above

            read_encoder(directory)
        case _:
            config = (directory / "config.json").read_bytes()
            check_library_support(engine, config, source, trust_remote_code=trust_remote_code)
