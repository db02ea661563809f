"""The models that the engine `encoder` runs with the library transformers, and the
settings that only these have.
"""

from __future__ import annotations

from pathlib import Path

from ....engines.encoder_config import is_numpy_architecture
from ....settings import Settings, find_changed_settings
from ....settings.fields import FIELDS_BY_NAME
from ...engine_choice import are_installed, read_directory_config
from ...engine_spec import ModelConfig
from ..transformers.settings import TransformersSettings

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


def runs_on_library(directory: Path) -> bool:
    return needs_library(read_directory_config(directory), directory)


def describe_ignored(
    settings: Settings, name: str, *, on_library: bool, renders_pairs: bool
) -> list[str]:
    """Return a sentence for each setting of the engine that this model ignores.

    name: The model's name, for the sentences.
    on_library: Whether the library runs the model.
    renders_pairs: Whether the chat template writes its pairs.
    """
    ignored: dict[str, str] = {}
    if not renders_pairs:
        ignored["chat_template"] = "it renders no conversations"
    if not on_library:
        reason = "it is computed in float32 on the CPU, without transformers"
        ignored |= dict.fromkeys(("dtype", "device", "quantization", "trust_remote_code"), reason)
        if settings.dtype == "float32":
            del ignored["dtype"]
        if settings.of(TransformersSettings).device == "cpu":
            del ignored["device"]
    changed = find_changed_settings(settings)
    return [
        f"{FIELDS_BY_NAME[setting].flag} would be ignored for {name}: {reason}"
        for setting, reason in ignored.items()
        if setting in changed
    ]
