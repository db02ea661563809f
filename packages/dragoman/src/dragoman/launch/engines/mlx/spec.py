"""Declares the engine `mlx`."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ....settings.engine_settings import BATCHING_SETTINGS
from ...directory_front_end import build_directory_front_end
from ...engine_spec import Acceptance, CapabilityRange, EngineSpec, LocalModels, ModelConfig
from ...safetensors_format import SAFETENSORS

if TYPE_CHECKING:
    from ....pipeline.served_model import ServedModel
    from ....serving.clock import Clock
    from ....settings import Settings


def build(settings: Settings, clock: Clock, path: str) -> ServedModel:
    from .build import build_mlx  # noqa: PLC0415 - needs mlx, an optional dependency

    return build_mlx(settings, clock, path)


def accepts(config: ModelConfig) -> Acceptance | None:
    if config.is_encoder:
        return None
    if config.is_quantized:
        return Acceptance(10, "it has mlx-lm's quantization", is_only=True)
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return Acceptance(40, "mlx-lm is installed, and this is Apple silicon")
    return None


def check_architecture(directory: Path, source: str, trust_remote_code: bool) -> None:
    from ...architecture_check import check_directory_support  # noqa: PLC0415 - not for each command
    from .library import MLX  # noqa: PLC0415 - as above

    check_directory_support(MLX, directory, source, trust_remote_code=trust_remote_code)


def describe_capabilities() -> Mapping[str, CapabilityRange]:
    from ....engines import batching  # noqa: PLC0415 - numpy takes long to import

    capabilities = batching.build_capabilities(1)
    return {"mlx": CapabilityRange(capabilities, capabilities)}


SPEC = EngineSpec(
    name="mlx",
    supports=BATCHING_SETTINGS | {"dtype", "trust_remote_code"},
    build=build,
    capabilities=describe_capabilities,
    needs_argument=True,
    local=LocalModels(
        format=SAFETENSORS,
        step_tokens=512,
        kv_block_size=16,
        accepts=accepts,
        check_architecture=check_architecture,
        build_front_end=build_directory_front_end,
    ),
    requires=("mlx_lm",),
    install="dragoman[mlx]",
)
