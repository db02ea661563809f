"""Which engine the model in a directory wants: what it says of itself, and what is installed here."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

EngineKind = Literal["encoder", "mlx", "transformers", "tiny"]


class _Config(msgspec.Struct):
    architectures: tuple[str, ...] = ()
    quantization: msgspec.Raw = msgspec.Raw(b"null")


def detect_engine(directory: Path) -> EngineKind:
    """An encoder is computed here; what mlx-lm has quantised only mlx-lm can read. The rest goes to mlx on a Mac, to
    torch elsewhere, where they are installed, and else to numpy, which refuses by name what it cannot compute.

    Raises ValueError where config.json cannot be read.
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
    return "transformers" if find_spec("torch") and find_spec("transformers") else "tiny"
