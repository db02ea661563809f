"""Declares the engine `transformers`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....settings.engine_settings import BATCHING_SETTINGS
from ...directory_front_end import build_directory_front_end
from ...engine_spec import Acceptance, CapabilityRange, EngineSpec, LocalModels, ModelConfig
from ...safetensors_format import SAFETENSORS
from .settings import TransformersSettings

if TYPE_CHECKING:
    from ....pipeline.served_model import ServedModel
    from ....serving.clock import Clock
    from ....settings import Settings


def build(settings: Settings, clock: Clock, path: str) -> ServedModel:
    from .build import build_transformers  # noqa: PLC0415 - needs torch, an optional dependency

    return build_transformers(settings, clock, path)


def accepts(config: ModelConfig) -> Acceptance | None:
    if config.is_encoder:
        return None
    if config.is_whisper:
        return Acceptance(0, "it is a Whisper model", is_only=True)
    return Acceptance(50, "torch and transformers are installed")


def check_architecture(directory: Path, source: str, trust_remote_code: bool) -> None:
    from ...architecture_check import check_directory_support  # noqa: PLC0415 - not for each command
    from .library import TRANSFORMERS  # noqa: PLC0415 - as above

    check_directory_support(TRANSFORMERS, directory, source, trust_remote_code=trust_remote_code)


def measure_kv_cache(settings: Settings, directory: Path) -> int:
    from .memory import measure_kv_cache  # noqa: PLC0415 - most servers measure no memory

    return measure_kv_cache(settings, directory)


def describe_device(settings: Settings, _path: Path) -> str:
    device = settings.of(TransformersSettings).device
    if device != "auto":
        return device
    # The engine has imported torch. An import here would take seconds in a process that
    # has not.
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def describe_capabilities() -> Mapping[str, CapabilityRange]:
    from ....engines import batching  # noqa: PLC0415 - numpy takes long to import

    return {
        "transformers": CapabilityRange(
            batching.build_capabilities(1, lora=True),
            batching.build_capabilities(1, lora=True, images=True),
        )
    }


SPEC = EngineSpec(
    name="transformers",
    settings=TransformersSettings,
    supports=BATCHING_SETTINGS | {"dtype", "threads", "trust_remote_code", "lora_modules"},
    build=build,
    capabilities=describe_capabilities,
    needs_argument=True,
    local=LocalModels(
        format=SAFETENSORS,
        step_tokens=2048,
        kv_block_size=16,
        accepts=accepts,
        check_architecture=check_architecture,
        measure_kv_cache=measure_kv_cache,
        describe_device=describe_device,
        build_front_end=build_directory_front_end,
    ),
    requires=("torch", "transformers"),
    install="dragoman[transformers]",
)
