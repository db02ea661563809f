"""Model directories: validation of the path and detection of the engine."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

EngineKind = Literal["encoder", "mlx", "transformers", "tiny"]


OTHER_ENGINES = "pip install '.[transformers]' (or '.[vllm]', '.[mlx]')"
"""How to install the engines for models that the numpy engine cannot run."""


class _Config(msgspec.Struct):
    architectures: tuple[str, ...] = ()
    quantization: msgspec.Raw = msgspec.Raw(b"null")


def detect_engine(directory: Path) -> EngineKind:
    """Choose the engine of a model directory.

    Encoders run on the built-in encoder engine; mlx-lm's quantization needs mlx-lm. Other models use mlx on a Mac and
    torch elsewhere, if installed; otherwise a Llama runs on numpy.

    Raises:
        ValueError: config.json cannot be read, or the engine is not installed.
    """
    try:
        config = msgspec.json.decode((directory / "config.json").read_bytes(), type=_Config)
    except msgspec.DecodeError as error:
        raise ValueError(f"{directory / 'config.json'}: {error}") from error
    generates = any("ForCausalLM" in name or "ForConditionalGeneration" in name for name in config.architectures)
    if not generates:
        return "encoder"
    if bytes(config.quantization) != b"null":
        return "mlx"
    if sys.platform == "darwin" and find_spec("mlx_lm") is not None:
        return "mlx"
    if find_spec("torch") and find_spec("transformers"):
        return "transformers"
    if "LlamaForCausalLM" not in config.architectures:
        raise ValueError(f"{config.architectures[0]} needs an engine that is not installed: {OTHER_ENGINES}")
    return "tiny"


def check_directory(text: str, engine: str = "") -> None:
    """Check that a path is a model directory.

    engine: the engine that MODEL names before the path; empty if it names none.

    Raises:
        ValueError: it is not; the message says what to do.
    """
    path = Path(text)
    if path.is_file():
        raise ValueError(f"{text} is a file; serve its directory: {path.parent}")
    if not path.exists():
        if re.fullmatch(r"\w[\w.-]*/[\w.-]+", text) is None:
            raise ValueError(f"{text} does not exist")
        local = f"./{path.name}"
        prefix = f"{engine}:" if engine else ""
        raise ValueError(
            f"{text} does not exist here, and models are not downloaded; run `hf download {text} --local-dir "
            f"{path.name}`, then `dragoman serve {prefix}{local}`"
        )
    if (path / "config.json").is_file():
        return
    # The layout of Hugging Face's cache: models--OWNER--NAME/snapshots/COMMIT.
    snapshots = sorted(file.parent for file in path.glob("snapshots/*/config.json"))
    if snapshots:
        raise ValueError(f"{text} is a Hugging Face cache folder; serve its snapshot: {snapshots[-1]}")
    files = sorted(path.glob("*.gguf"))
    if files:
        raise ValueError(f"{text} has no config.json; to serve its GGUF file use {files[0]}")
    raise ValueError(f"{text} has no config.json, so it is not a model directory")
