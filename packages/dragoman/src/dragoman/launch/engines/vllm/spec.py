"""Declares the engine `vllm`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ....settings.engine_settings import VLLM_SETTINGS
from ...engine_spec import Acceptance, CapabilityRange, EngineSpec, LocalModels, ModelConfig
from ...safetensors_format import SAFETENSORS
from .settings import VllmEngineSettings

if TYPE_CHECKING:
    from ....pipeline.served_model import ServedModel
    from ....serving.clock import Clock
    from ....settings import Settings

_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/accel0")
"""Device files of NVIDIA, AMD, GPUs under WSL, and TPUs and Gaudi. A query through
torch would take seconds.
"""


def build(settings: Settings, clock: Clock, path: str) -> ServedModel:
    from .build import build_vllm  # noqa: PLC0415 - needs vLLM, an optional dependency

    return build_vllm(settings, clock, path)


def accepts(config: ModelConfig) -> Acceptance | None:
    has_accelerator = any(Path(device).exists() for device in _ACCELERATORS)
    if not config.generates_text or config.is_reranker or not has_accelerator:
        return None
    return Acceptance(20, "vLLM is installed, and there is an accelerator")


def check_architecture(directory: Path, source: str, trust_remote_code: bool) -> None:
    from ...architecture_check import check_directory_support  # noqa: PLC0415 - not for each command
    from .library import VLLM  # noqa: PLC0415 - as above

    check_directory_support(VLLM, directory, source, trust_remote_code=trust_remote_code)


def advise(model: str) -> str:
    return (
        "vLLM has front ends and an engine process of its own: start `vllm serve` with "
        "--api-server-count, and "
        f"workers in front of it (`dragoman serve http://HOST:PORT/v1 --workers N`) in "
        f"place of {model}"
    )


def describe_capabilities() -> Mapping[str, CapabilityRange]:
    from ....engines.vllm.features import VllmFeatures  # noqa: PLC0415 - not for each command

    plain = VllmFeatures(max_model_len=1, vocab_size=1, max_logprobs=20, eos_id=0)
    most = replace(plain, reasoning_delimiters=((), ()), has_lora=True)
    return {"vllm": CapabilityRange(plain.build_capabilities(), most.build_capabilities())}


SPEC = EngineSpec(
    name="vllm",
    settings=VllmEngineSettings,
    supports=VLLM_SETTINGS | {"dtype", "trust_remote_code"},
    build=build,
    capabilities=describe_capabilities,
    needs_argument=True,
    local=LocalModels(format=SAFETENSORS, accepts=accepts, check_architecture=check_architecture),
    requires=("vllm",),
    install="dragoman[vllm]",
    workers_advice=advise,
)
