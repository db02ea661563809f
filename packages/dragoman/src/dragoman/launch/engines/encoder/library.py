"""The models that the engine `encoder` runs with the library transformers."""

from __future__ import annotations

from pathlib import Path

from ....engines.encoder_config import is_numpy_architecture
from ...engine_choice import are_installed
from ...engine_spec import ModelConfig

_MODULES = ("torch", "transformers")


def is_library_installed() -> bool:
    return are_installed(_MODULES)


def needs_library(config: ModelConfig, directory: Path) -> bool:
    """Whether the library runs the model of a directory: the engine does not know the
    class itself, and the library is installed or needed.

    Raises: EngineError if config.json cannot be read.
    """
    return config.generates_text or (
        not is_numpy_architecture(directory) and is_library_installed()
    )
