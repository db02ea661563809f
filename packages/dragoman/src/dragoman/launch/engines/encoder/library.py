"""The models that the engine `encoder` runs with the library transformers, and the
settings that only these have.
"""

from __future__ import annotations

from ....settings import Settings, find_changed_settings
from ....settings.fields import FIELDS_BY_NAME
from ...engine_choice import are_installed
from ...engine_spec import ModelConfig
from ..transformers.settings import TransformersSettings

_MODULES = ("torch", "transformers")


def is_library_installed() -> bool:
    return are_installed(_MODULES)


def runs_on_library(config: ModelConfig) -> bool:
    """Whether the library runs a model: it is installed, or no other code can.

    Where the library is missing, the numpy encoder runs the classes that it knows.
    """
    return config.generates_text or is_library_installed()


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
