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


def build(settings: Settings, clock: Clock, path: str) -> ServedModel:
    from .build import build_encoder  # noqa: PLC0415 - numpy takes long to import

    return build_encoder(settings, clock, path)


def accepts(config: ModelConfig) -> Acceptance | None:
    if not config.generates_text:
        return Acceptance(0, f"{config.architecture} generates no text")
    if not config.is_encoder:
        return None
    from .library import is_library_installed  # noqa: PLC0415 - imports the registry of engines

    task = "scores pairs of texts" if config.is_reranker else "embeds texts"
    problem = (
        f"its files declare that {config.architecture} {task}, which needs an engine that is not "
        f"installed: pip install 'dragoman[transformers]'"
    )
    return Acceptance(
        # vLLM, whose rank is between these, can embed texts with such a model.
        5 if config.is_reranker else 30,
        f"its files declare a model that {task}",
        problem=None if is_library_installed() else problem,
    )


def check_architecture(directory: Path, source: str, trust_remote_code: bool) -> None:
    from ....engines.encoder_config import read_config  # noqa: PLC0415 - not for each command
    from ...architecture_check import check_directory_support  # noqa: PLC0415 - as above
    from ...engine_choice import read_directory_config  # noqa: PLC0415 - as above
    from ..transformers.library import TRANSFORMERS  # noqa: PLC0415 - as above
    from .library import runs_on_library  # noqa: PLC0415 - as above

    if runs_on_library(read_directory_config(directory)):
        check_directory_support(
            TRANSFORMERS, directory, source, trust_remote_code=trust_remote_code
        )
    else:
        read_config(directory)


def reads_file(path: str) -> bool:
    from ....engines.sentence_modules import DECLARATION_FILES  # noqa: PLC0415 - not for each command

    return path in DECLARATION_FILES or path.endswith("/config.json")


def describe_device(settings: Settings, directory: Path) -> str:
    from ...engine_choice import read_directory_config  # noqa: PLC0415 - not for each command
    from ..transformers.spec import describe_device as describe_library_device  # noqa: PLC0415 - as above
    from .library import runs_on_library  # noqa: PLC0415 - as above

    on_library = runs_on_library(read_directory_config(directory))
    return describe_library_device(settings, directory) if on_library else "cpu"


def find_dtype(directory: Path) -> str | None:
    from ...engine_choice import read_directory_config  # noqa: PLC0415 - not for each command
    from .library import runs_on_library  # noqa: PLC0415 - as above

    return None if runs_on_library(read_directory_config(directory)) else "float32"


SPEC = EngineSpec(
    name="encoder",
    # All but `threads` depend on the model, see `library.describe_ignored`.
    supports=frozenset(
        {"threads", "dtype", "device", "quantization", "trust_remote_code", "chat_template"}
    ),
    build=build,
    needs_argument=True,
    local=LocalModels(
        format=SAFETENSORS,
        accepts=accepts,
        check_architecture=check_architecture,
        reads_file=reads_file,
        describe_device=describe_device,
        find_dtype=find_dtype,
    ),
    is_replicable=True,
)
