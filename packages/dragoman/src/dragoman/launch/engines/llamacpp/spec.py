"""Declares the engine `llamacpp`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ....settings.engine_settings import TOKEN_SETTINGS
from ...engine_spec import CapabilityRange, EngineSpec, LocalModels
from .gguf_format import GGUF
from .settings import LlamaCppSettings

if TYPE_CHECKING:
    from ....pipeline.served_model import ServedModel
    from ....serving.clock import Clock
    from ....settings import Settings
    from ...front_end import FrontEnd


def build(settings: Settings, clock: Clock, path: str) -> ServedModel:
    from .build import build_llamacpp  # noqa: PLC0415 - numpy takes long to import; also below

    return build_llamacpp(settings, clock, path)


def claim(model: str) -> str | None:
    return model if model.endswith(".gguf") else None


def measure_kv_cache(settings: Settings, path: Path) -> int:
    from .build import measure_memory  # noqa: PLC0415

    return measure_memory(settings, path)


def describe_device(settings: Settings, _path: Path) -> str:
    layers = settings.of(LlamaCppSettings).gpu_layers
    if layers == 0:
        return "cpu"
    return "chosen by llama.cpp" if layers < 0 else f"gpu for {layers} layers"


def build_front_end(
    settings: Settings,
    clock: Clock,
    path: Path,
    name: str,  # noqa: ARG001 - the file has the name
    front_end: FrontEnd,
) -> ServedModel:
    from .build import build_gguf_front_end  # noqa: PLC0415

    return build_gguf_front_end(settings, clock, path, front_end)


def describe_capabilities() -> Mapping[str, CapabilityRange]:
    from ....engines.llamacpp.engine import build_capabilities as build  # noqa: PLC0415

    return {"llamacpp": CapabilityRange(build(1), build(1, images=True))}


SPEC = EngineSpec(
    name="llamacpp",
    aliases=("gguf",),
    settings=LlamaCppSettings,
    supports=TOKEN_SETTINGS
    | {"dtype", "threads", "kv_cache_tokens", "close_at_limit", "step_timeout"},
    build=build,
    capabilities=describe_capabilities,
    needs_argument=True,
    claims=claim,
    local=LocalModels(
        format=GGUF,
        step_tokens=2048,
        measure_kv_cache=measure_kv_cache,
        describe_device=describe_device,
        build_front_end=build_front_end,
    ),
    requires=("xllamacpp",),
    install="dragoman[llamacpp]",
)
