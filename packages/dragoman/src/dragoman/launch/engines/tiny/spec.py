"""Declares the engine `tiny`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ....settings.engine_settings import BATCHING_SETTINGS
from ...directory_front_end import build_directory_front_end
from ...engine_spec import Acceptance, EngineSpec, LocalModels, ModelConfig
from ...safetensors_format import SAFETENSORS

if TYPE_CHECKING:
    from ....pipeline.served_model import ServedModel
    from ....serving.clock import Clock
    from ....settings import Settings

MAX_BYTES = 4 << 30
"""Largest weights for which the engine is chosen: it computes in float32, slowly."""


def build(settings: Settings, clock: Clock, path: str) -> ServedModel:
    from .build import build_tiny  # noqa: PLC0415 - numpy takes long to import; also below

    return build_tiny(settings, clock, path)


def accepts(config: ModelConfig) -> Acceptance | None:
    if "LlamaForCausalLM" not in config.architectures or config.weights > MAX_BYTES:
        return None
    return Acceptance(90, "it is a small Llama, and no engine for larger models is installed")


def check_architecture(directory: Path, source: str, trust_remote_code: bool) -> None:  # noqa: ARG001 - the signature is LocalModels'
    from ....engines.tiny.llama_config import read_config  # noqa: PLC0415

    read_config(directory / "config.json")


def find_bundled() -> Path:
    from ....engines.bundled_model import find_bundled_model  # noqa: PLC0415

    return find_bundled_model()


SPEC = EngineSpec(
    name="tiny",
    supports=BATCHING_SETTINGS | {"threads"},
    build=build,
    local=LocalModels(
        format=SAFETENSORS,
        step_tokens=512,
        kv_block_size=16,
        takes_kv_cache_at_start=True,
        accepts=accepts,
        check_architecture=check_architecture,
        find_bundled=find_bundled,
        describe_device=lambda _settings, _path: "cpu",
        find_dtype=lambda _: "float32",
        build_front_end=build_directory_front_end,
    ),
    is_replicable=True,
)
