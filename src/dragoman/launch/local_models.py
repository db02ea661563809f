"""Models in files of this machine: their names, and the checks that need no weights.

A server checks a model before it listens, so that a mistake in MODEL ends it at once, and loads it afterwards.
"""

from __future__ import annotations

from pathlib import Path

from ..core.errors import EngineError
from .engine_detection import OTHER_ENGINES, check_directory, check_engine_installed
from .library_support import check_library_support


def find_model_name(kind: str, path: str) -> str | None:
    """The name of a model in files; None for any other, which its engine names.

    kind, path: as of `parse_model`. The embedded model has no path: it is loaded in a moment.
    """
    match kind:
        case "tiny" | "transformers" | "mlx" | "encoder" | "vllm" if path:
            return Path(path).resolve().name
        case "llamacpp" if path:
            return Path(path).stem
        case _:
            return None


def check_local_model(kind: str, path: str, *, is_fallback: bool, trust_remote_code: bool = False) -> None:
    """Check what can be known of a model in files without its weights.

    kind, path: as of `parse_model`. is_fallback: the engine was chosen because no other one is installed.

    Raises:
        ValueError: there is no model, or the engine is not installed.
        OSError, EngineError: a file cannot be read, or the engine does not support the model.
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
            f"{path} contains no safetensors file; other formats are not supported, because they may run code"
        )
    if not (Path(path) / "tokenizer.json").exists():
        raise EngineError(f"{path} contains no tokenizer.json")


def check_architecture(engine: str, directory: Path, source: str, *, trust_remote_code: bool = False) -> None:
    """Raise EngineError if an engine, or the library that it runs, does not support the model.

    source: names the model in messages of the libraries.
    """
    match engine:
        case "tiny":
            from ..engines.tiny.config import read_config  # noqa: PLC0415 - numpy takes long to import

            read_config(directory / "config.json")
        case "encoder":
            from ..engines.encoder.config import read_config as read_encoder  # noqa: PLC0415 - as above

            read_encoder(directory)
        case _:
            config = (directory / "config.json").read_bytes()
            check_library_support(engine, config, source, trust_remote_code=trust_remote_code)
