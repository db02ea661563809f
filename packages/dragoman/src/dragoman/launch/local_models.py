"""Models in local files: their names, the choice of their engine, and the checks that
need no weights.

The engine of a model is chosen from its files before it is downloaded or loaded. The
lists of models that the installed transformers, mlx-lm and vLLM support are read from
the libraries' source files, without importing them.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, entry_points, version
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


# The choice of the engine.

OTHER_ENGINES = "pip install '.[transformers]' (or '.[vllm]', '.[mlx]') in the clone of Dragoman"
"""Commands that install the engines for models that the numpy engine cannot run."""
MAX_NUMPY_BYTES = 4 << 30
"""Largest weights for which the numpy engine is chosen: it computes in float32, slowly.
"""
_MODULES = {
    "transformers": ("torch", "transformers"),
    "vllm": ("vllm",),
    "mlx": ("mlx_lm",),
    "llamacpp": ("xllamacpp",),
}
"""The modules of each optional engine."""
_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/accel0")
"""Device files of NVIDIA, AMD, GPUs under WSL, and TPUs and Gaudi. A query through
torch would take seconds.
"""


class EngineChoice(Struct, frozen=True):
    """The engine of a model.

    engine: its name; empty if no installed engine supports the model.
    reason: why it was chosen, or what to do if there is none.
    """

    engine: str
    reason: str


class _DetectedConfig(msgspec.Struct):
    architectures: tuple[str, ...] = ()
    quantization: msgspec.Raw = msgspec.Raw(b"null")


def is_engine_installed(engine: str) -> bool:
    """Whether the optional dependencies of an engine are installed; true for engines
    that need none.
    """
    return all(find_spec(module) is not None for module in _MODULES.get(engine, ()))


def check_engine_installed(engine: str, model: str) -> None:
    """Raise ValueError, with the command that installs the engine, if it is not
    installed.
    """
    if not is_engine_installed(engine):
        raise ValueError(
            f"{model} needs the engine {engine}, which is not installed: "
            f"pip install '.[{engine}]' in the clone of Dragoman"
        )


def choose_engine(config: bytes, source: str, weights: int) -> EngineChoice:
    """Choose the engine of a model in safetensors format.

    Encoders run on the built-in encoder engine, and models with mlx-lm's quantization
    on mlx-lm. Other models run on the first installed engine: vLLM if there is an
    accelerator, mlx on Apple silicon, then transformers. If none is installed, a small
    Llama runs on numpy.

    config: the content of config.json.
    source: names that file in messages.
    weights: bytes of the model's weights.

    Raises:
        ValueError: config.json is invalid, or the engine is not installed.
    """
    try:
        decoded = msgspec.json.decode(config, type=_DetectedConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{source}: {error}") from error
    architecture = (
        decoded.architectures[0] if decoded.architectures else "a model without an architecture"
    )
    # In transformers, the name of a model's class says what its head is for.
    if not any(
        "ForCausalLM" in name or "ForConditionalGeneration" in name
        for name in decoded.architectures
    ):
        return EngineChoice("encoder", f"{architecture} generates no text")
    if bytes(decoded.quantization) != b"null":
        return EngineChoice("mlx", "it has mlx-lm's quantization")
    if is_engine_installed("vllm") and any(Path(device).exists() for device in _ACCELERATORS):
        return EngineChoice("vllm", "vLLM is installed, and there is an accelerator")
    if sys.platform == "darwin" and platform.machine() == "arm64" and is_engine_installed("mlx"):
        return EngineChoice("mlx", "mlx-lm is installed, and this is Apple silicon")
    if is_engine_installed("transformers"):
        return EngineChoice("transformers", "torch and transformers are installed")
    if "LlamaForCausalLM" not in decoded.architectures:
        raise ValueError(f"{architecture} needs an engine that is not installed: {OTHER_ENGINES}")
    if weights > MAX_NUMPY_BYTES:
        raise ValueError(
            f"a model of this size needs an engine that is not installed: {OTHER_ENGINES}"
        )
    return EngineChoice("tiny", "it is a small Llama, and no engine for larger models is installed")


def detect_engine(directory: Path) -> str:
    """Choose the engine of a model directory.

    Raises:
        ValueError: config.json cannot be read, or the engine is not installed.
    """
    return choose_directory_engine(directory).engine


def choose_directory_engine(directory: Path) -> EngineChoice:
    """Choose the engine of a model directory, with the reason. Raises as
    `detect_engine`.
    """
    config = directory / "config.json"
    weights = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    return choose_engine(config.read_bytes(), str(config), weights)


def check_directory(text: str) -> None:
    """Check that a path is a model directory.

    Raises:
        ValueError: the path is not a model directory; the message says what to do.
    """
    path = Path(text)
    if path.is_file():
        raise ValueError(f"{text} is a file; serve its directory: {path.parent}")
    if not path.exists():
        hub_name = re.fullmatch(r"models--([\w.-]+?)--([\w.-]+)", path.name)
        hint = (
            f"; to download it, serve {hub_name[1]}/{hub_name[2]}"
            if hub_name
            else "; check the path, or serve `org/name` to download a model"
        )
        raise ValueError(f"{text} does not exist{hint}")
    if (path / "config.json").is_file():
        return
    # The layout of Hugging Face's cache: models--OWNER--NAME/snapshots/COMMIT.
    snapshots = sorted(file.parent for file in path.glob("snapshots/*/config.json"))
    if snapshots:
        raise ValueError(
            f"{text} is a Hugging Face cache folder; serve its snapshot: {snapshots[-1]}"
        )
    files = sorted(path.glob("*.gguf"))
    if files:
        raise ValueError(f"{text} has no config.json; to serve its GGUF file use {files[0]}")
    if (path / "adapter_config.json").is_file():
        raise ValueError(
            f"{text} is a LoRA adapter; serve its base model with `--lora-modules NAME={text}`"
        )
    raise ValueError(
        f"{text} has no config.json, so it is not a model directory; serve the directory that has "
        f"one, or "
        "`org/name` to download a model"
    )


def find_model_name(kind: str, path: str) -> str | None:
    """Return the name of a model in local files; None for other models, whose engine
    names them.

    kind, path: from `parse_model`. The bundled model has an empty path.
    """
    match kind:
        case "tiny" | "transformers" | "mlx" | "encoder" | "vllm" if path:
            return Path(path).resolve().name
        case "llamacpp" if path:
            return Path(path).stem
        case _:
            return None


def check_local_model(
    kind: str, path: str, *, is_fallback: bool, trust_remote_code: bool = False
) -> None:
    """Check a model in local files as far as possible without its weights.

    kind, path: from `parse_model`.
    is_fallback: whether MODEL names no engine, so that another engine may support the
        model.

    Raises:
        ValueError: there is no model at this path, or the engine is not installed.
        OSError, EngineError: a file cannot be read, or the engine does not support the
            model.
    """
    check_engine_installed(kind, path)
    if kind == "llamacpp":
        from ..engines.llamacpp import read_metadata  # noqa: PLC0415 - numpy takes long to import

        read_metadata(Path(path))
        return
    check_directory(path)
    try:
        check_architecture(kind, Path(path), path, trust_remote_code=trust_remote_code)
    except EngineError as error:
        if is_fallback and kind == "tiny":
            raise EngineError(f"{error}; for other models: {OTHER_ENGINES}") from error
        raise
    if not any(Path(path).glob("*.safetensors")):
        raise EngineError(
            f"{path} contains no safetensors file; other formats are not supported, because they "
            f"may run code"
        )
    if not (Path(path) / "tokenizer.json").exists():
        raise EngineError(f"{path} contains no tokenizer.json")


def check_architecture(
    engine: str, directory: Path, source: str, *, trust_remote_code: bool = False
) -> None:
    """Raise EngineError if an engine, or the library that it runs, does not support the
    model.

    source: names the model in messages.
    """
    match engine:
        case "tiny":
            from ..engines.tiny.model import read_config  # noqa: PLC0415 - numpy takes long to import

            read_config(directory / "config.json")
        case "encoder":
            from ..engines.encoder import read_config as read_encoder  # noqa: PLC0415 - as above

            read_encoder(directory)
        case _:
            config = (directory / "config.json").read_bytes()
            check_library_support(engine, config, source, trust_remote_code=trust_remote_code)
