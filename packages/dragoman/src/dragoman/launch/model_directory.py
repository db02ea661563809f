"""Checks of a model directory."""

from __future__ import annotations

import re
from pathlib import Path

from ..core.errors import EngineError


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


def check_directory_files(path: Path) -> None:
    """Check that a model directory has weights and a tokenizer. Raises EngineError."""
    if not any(path.glob("*.safetensors")):
        raise EngineError(
            f"{path} contains no safetensors file; other formats are not supported, because they "
            f"may run code"
        )
    if not (path / "tokenizer.json").exists():
        raise EngineError(f"{path} contains no tokenizer.json")
