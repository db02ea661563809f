"""The architectures that the library transformers supports."""

from __future__ import annotations

from ...architecture_check import ArchitectureConfig, Library, knows, read_names


def knows_model_type(config: ArchitectureConfig) -> bool:
    """Whether the library has a model's type; true if that is unknown."""
    return knows(read_names("transformers", "models/auto/*.py"), [config.model_type])


TRANSFORMERS = Library("transformers", knows_model_type)
