"""Declares the engine `encoder`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...engine_spec import Acceptance, EngineSpec, LocalModels, ModelConfig
from ...safetensors_format import SAFETENSORS

if TYPE_CHECKING:
    from ....pipeline.served_model import ServedModel
    from ....serving.clock import Clock
    from ....settings import Settings

_EMBEDDING_FILES = frozenset(
    {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
)
"""Files of sentence-transformers that say how a model embeds texts."""
_CAUSAL_LIBRARIES = ("torch", "transformers")
"""The modules that run causal models that embed texts."""


def build(settings: Settings, clock: Clock, path: str) -> ServedModel:
    from .build import build_encoder  # noqa: PLC0415 - numpy takes long to import

    return build_encoder(settings, clock, path)


def accepts(config: ModelConfig) -> Acceptance | None:
    if not config.generates_text:
        return Acceptance(0, f"{config.architecture} generates no text")
    if not config.is_embedder:
        return None
    from ...engine_choice import are_installed  # noqa: PLC0415 - imports the registry of engines

    problem = (
        f"modules.json declares that {config.architecture} embeds texts, which needs an engine "
        f"that is not installed: pip install 'dragoman[transformers]'"
    )
    return Acceptance(
        30,
        "modules.json declares an embedding model",
        problem=None if are_installed(_CAUSAL_LIBRARIES) else problem,
    )


def check_architecture(directory: Path, source: str, trust_remote_code: bool) -> None:
    from ....engines.encoder_config import read_config  # noqa: PLC0415 - not for each command
    from ...architecture_check import check_directory_support  # noqa: PLC0415 - as above
    from ...engine_choice import read_directory_config  # noqa: PLC0415 - as above
    from ..transformers.library import TRANSFORMERS  # noqa: PLC0415 - as above

    config = read_directory_config(directory)
    if config.generates_text and config.is_embedder:
        check_directory_support(
            TRANSFORMERS, directory, source, trust_remote_code=trust_remote_code
        )
    else:
        read_config(directory)


SPEC = EngineSpec(
    name="encoder",
    supports=frozenset({"threads"}),
    build=build,
    needs_argument=True,
    local=LocalModels(
        format=SAFETENSORS,
        accepts=accepts,
        check_architecture=check_architecture,
        reads_file=lambda path: path in _EMBEDDING_FILES or path.endswith("/config.json"),
        describe_device=lambda _: "cpu",
        dtype="float32",
    ),
    is_replicable=True,
)
