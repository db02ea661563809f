"""Models in local files: their names, with the checks that need no weights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..core.errors import EngineError
from .architecture_check import check_architecture
from .engine_choice import OTHER_ENGINES, check_engine_installed


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
        _check_lfs_pointers([Path(path)])
        from ..engines.llamacpp import read_metadata  # noqa: PLC0415 - numpy takes long to import

        read_metadata(Path(path))
        return
    check_directory(path)
    _check_lfs_pointers(
        file
        for pattern in ("*.safetensors", "*.json", "*.model", "*.jinja")
        for file in sorted(Path(path).glob(pattern))
    )
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


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""The begin of the file that git has for a large file without Git LFS:
https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
"""


def _check_lfs_pointers(files: Iterable[Path]) -> None:
    """Raise EngineError if a file is the pointer to a large file."""
    for file in files:
        if not file.is_file():
            continue
        with file.open("rb") as content:
            head = content.read(len(_LFS_POINTER))
        if head == _LFS_POINTER:
            raise EngineError(
                f"{file} is a Git LFS pointer and not the file itself; run `git lfs pull` in "
                f"{file.parent}"
            )
