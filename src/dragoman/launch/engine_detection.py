"""The engine of a model: chosen from its files before it is downloaded or loaded. Model directories are validated."""

from __future__ import annotations

import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

OTHER_ENGINES = "pip install '.[transformers]' (or '.[vllm]', '.[mlx]')"
"""How to install the engines for models that the numpy engine cannot run."""
MAX_NUMPY_BYTES = 4 << 30
"""Weights that the numpy engine is chosen for: it computes in float32, about a token per second for each gigabyte."""
_MODULES = {
    "transformers": ("torch", "transformers"),
    "vllm": ("vllm",),
    "mlx": ("mlx_lm",),
    "llamacpp": ("xllamacpp",),
}
"""The modules of each optional engine."""
_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/accel0")
"""Devices of NVIDIA, AMD, GPUs under WSL, and TPUs and Gaudi. Asking torch would take seconds."""


class EngineChoice(Struct, frozen=True):
    """An engine, and why it was chosen."""

    engine: str
    reason: str


class _Config(msgspec.Struct):
    architectures: tuple[str, ...] = ()
    quantization: msgspec.Raw = msgspec.Raw(b"null")


def is_engine_installed(engine: str) -> bool:
    """Whether the extra of this engine is installed; true for those that need none."""
    return all(find_spec(module) is not None for module in _MODULES.get(engine, ()))


def check_engine_installed(engine: str, model: str) -> None:
    """Raises ValueError with the command that installs the engine, if it is not installed."""
    if not is_engine_installed(engine):
        raise ValueError(f"{model} needs the engine {engine}, which is not installed: pip install '.[{engine}]'")


def choose_engine(config: bytes, source: str, weights: int) -> EngineChoice:
    """Choose the engine of a model in safetensors.

    Encoders run on the built-in encoder engine; mlx-lm's quantization needs mlx-lm. Other models use vLLM where it is
    installed with an accelerator, mlx on a Mac and torch elsewhere, if installed; otherwise a small Llama runs on
    numpy.

    config: the content of its config.json. source: names that file in messages. weights: bytes of its weights.

    Raises:
        ValueError: config.json is invalid, or the engine is not installed.
    """
    try:
        decoded = msgspec.json.decode(config, type=_Config)
    except msgspec.DecodeError as error:
        raise ValueError(f"{source}: {error}") from error
    architecture = decoded.architectures[0] if decoded.architectures else "a model without an architecture"
    # The naming rule of transformers: a class says in its name what its head is for.
    if not any("ForCausalLM" in name or "ForConditionalGeneration" in name for name in decoded.architectures):
        return EngineChoice("encoder", f"{architecture} generates no text")
    if bytes(decoded.quantization) != b"null":
        return EngineChoice("mlx", "it has mlx-lm's quantization")
    if is_engine_installed("vllm") and any(Path(device).exists() for device in _ACCELERATORS):
        return EngineChoice("vllm", "vLLM is installed, and there is an accelerator")
    if sys.platform == "darwin" and platform.machine() == "arm64" and is_engine_installed("mlx"):
        return EngineChoice("mlx", "mlx-lm is installed, and this is Apple silicon")
    if is_engine_installed("transformers"):
        return EngineChoice("transformers", "torch and transformers are installed")
    if "LlamaForCausalLM" not in decoded.architectures:
        raise ValueError(f"{architecture} needs an engine that is not installed: {OTHER_ENGINES}")
    if weights > MAX_NUMPY_BYTES:
        raise ValueError(f"a model of this size needs an engine that is not installed: {OTHER_ENGINES}")
    return EngineChoice("tiny", "it is a small Llama, and no engine for larger models is installed")


def detect_engine(directory: Path) -> str:
    """Choose the engine of a model directory.

    Raises:
        ValueError: config.json cannot be read, or the engine is not installed.
    """
    return choose_directory_engine(directory).engine


def choose_directory_engine(directory: Path) -> EngineChoice:
    """As `detect_engine`, with the reason."""
    config = directory / "config.json"
    weights = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    return choose_engine(config.read_bytes(), str(config), weights)


def check_directory(text: str) -> None:
    """Check that a path is a model directory.

    Raises:
        ValueError: it is not; the message says what to do.
    """
    path = Path(text)
    if path.is_file():
        raise ValueError(f"{text} is a file; serve its directory: {path.parent}")
    if not path.exists():
        hub_name = re.fullmatch(r"models--([\w.-]+?)--([\w.-]+)", path.name)
        hint = (
            f"; to download it, serve {hub_name[1]}/{hub_name[2]}"
            if hub_name
            else "; check the path, or serve `org/name` to download a model"
        )
        raise ValueError(f"{text} does not exist{hint}")
    if (path / "config.json").is_file():
        return
    # The layout of Hugging Face's cache: models--OWNER--NAME/snapshots/COMMIT.
    snapshots = sorted(file.parent for file in path.glob("snapshots/*/config.json"))
    if snapshots:
        raise ValueError(f"{text} is a Hugging Face cache folder; serve its snapshot: {snapshots[-1]}")
    files = sorted(path.glob("*.gguf"))
    if files:
        raise ValueError(f"{text} has no config.json; to serve its GGUF file use {files[0]}")
    if (path / "adapter_config.json").is_file():
        raise ValueError(f"{text} is a LoRA adapter; serve its base model with `--lora-modules NAME={text}`")
    raise ValueError(
        f"{text} has no config.json, so it is not a model directory; serve the directory that has one, or "
        "`org/name` to download a model"
    )
