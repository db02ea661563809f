"""The choice of a model's engine, from its files."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

from ..engines.encoder_config import declares_pooling

OTHER_ENGINES = "pip install 'dragoman[transformers]' (or 'dragoman[vllm]', 'dragoman[mlx]')"
"""Commands that install the engines for models that the numpy engine cannot run."""


MAX_NUMPY_BYTES = 4 << 30
"""Largest weights for which the numpy engine is chosen: it computes in float32, slowly.
"""


_MODULES = {
    "transformers": ("torch", "transformers"),
    "vllm": ("vllm",),
    "mlx": ("mlx_lm",),
    "llamacpp": ("xllamacpp",),
}
"""The modules of each optional engine."""


_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/accel0")
"""Device files of NVIDIA, AMD, GPUs under WSL, and TPUs and Gaudi. A query through
torch would take seconds.
"""


class EngineChoice(Struct, frozen=True):
    """The engine of a model.

    engine: its name; empty if no installed engine supports the model.
    reason: why it was chosen, or what to do if there is none.
    """

    engine: str
    reason: str


class _DetectedConfig(msgspec.Struct):
    architectures: tuple[str, ...] = ()
    quantization: msgspec.Raw = msgspec.Raw(b"null")


def generates_text(architectures: Iterable[str]) -> bool:
    """Whether the class of a model has a head that generates text: in transformers, the
    name of the class says what its head is for.
    """
    return any(
        "ForCausalLM" in name or "ForConditionalGeneration" in name for name in architectures
    )


def embeds_with_transformers(directory: Path) -> bool:
    """Whether the encoder engine needs transformers for the model of a directory: a
    causal model that modules.json declares to embed texts.

    Raises: ValueError if config.json cannot be read.
    """
    modules = directory / "modules.json"
    try:
        config = msgspec.json.decode((directory / "config.json").read_bytes(), type=_DetectedConfig)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{directory / 'config.json'}: {error}") from error
    return generates_text(config.architectures) and declares_pooling(
        modules.read_bytes() if modules.exists() else None
    )


def is_engine_installed(engine: str) -> bool:
    """Whether the optional dependencies of an engine are installed; true for engines
    that need none.
    """
    return all(find_spec(module) is not None for module in _MODULES.get(engine, ()))


def check_engine_installed(engine: str, model: str) -> None:
    """Raise ValueError, with the command that installs the engine, if it is not
    installed.
    """
    if not is_engine_installed(engine):
        raise ValueError(
            f"{model} needs the engine {engine}, which is not installed: "
            f"pip install 'dragoman[{engine}]'"
        )


def choose_engine(
    config: bytes, source: str, weights: int, modules: bytes | None = None
) -> EngineChoice:
    """Choose the engine of a model in safetensors format.

    Encoders run on the built-in encoder engine, and so do causal models that
    modules.json declares to embed texts, unless vLLM runs them. Models with mlx-lm's
    quantization run on mlx-lm. Other models run on the first installed engine: vLLM if
    there is an accelerator, mlx on Apple silicon, then transformers. If none is
    installed, a small Llama runs on numpy.

    config: the content of config.json.
    source: names that file in messages.
    weights: bytes of the model's weights.
    modules: the content of modules.json; None if there is none.

    Raises:
        ValueError: config.json is invalid, or the engine is not installed.
    """
    try:
        decoded = msgspec.json.decode(config, type=_DetectedConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{source}: {error}") from error
    architecture = (
        decoded.architectures[0] if decoded.architectures else "a model without an architecture"
    )
    if not generates_text(decoded.architectures):
        return EngineChoice("encoder", f"{architecture} generates no text")
    is_embedder = declares_pooling(modules)
    if bytes(decoded.quantization) != b"null" and not is_embedder:
        return EngineChoice("mlx", "it has mlx-lm's quantization")
    if is_engine_installed("vllm") and any(Path(device).exists() for device in _ACCELERATORS):
        return EngineChoice("vllm", "vLLM is installed, and there is an accelerator")
    if is_embedder:
        return _choose_embedder(architecture)
    if sys.platform == "darwin" and platform.machine() == "arm64" and is_engine_installed("mlx"):
        return EngineChoice("mlx", "mlx-lm is installed, and this is Apple silicon")
    return _choose_portable(decoded.architectures, architecture, weights)


def _choose_embedder(architecture: str) -> EngineChoice:
    if not is_engine_installed("transformers"):
        raise ValueError(
            f"modules.json declares that {architecture} embeds texts, which needs an engine that "
            f"is not installed: pip install 'dragoman[transformers]'"
        )
    return EngineChoice("encoder", "modules.json declares an embedding model")


def _choose_portable(
    architectures: tuple[str, ...], architecture: str, weights: int
) -> EngineChoice:
    """Choose an engine that runs on every machine. Raises ValueError."""
    if is_engine_installed("transformers"):
        return EngineChoice("transformers", "torch and transformers are installed")
    if "LlamaForCausalLM" not in architectures:
        raise ValueError(f"{architecture} needs an engine that is not installed: {OTHER_ENGINES}")
    if weights > MAX_NUMPY_BYTES:
        raise ValueError(
            f"a model of this size needs an engine that is not installed: {OTHER_ENGINES}"
        )
    return EngineChoice("tiny", "it is a small Llama, and no engine for larger models is installed")


def detect_engine(directory: Path) -> str:
    """Choose the engine of a model directory.

    Raises:
        ValueError: config.json cannot be read, or the engine is not installed.
    """
    return choose_directory_engine(directory).engine


def choose_directory_engine(directory: Path) -> EngineChoice:
    """Choose the engine of a model directory, with the reason. Raises as
    `detect_engine`.
    """
    config = directory / "config.json"
    modules = directory / "modules.json"
    weights = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    return choose_engine(
        config.read_bytes(),
        str(config),
        weights,
        modules.read_bytes() if modules.exists() else None,
    )
