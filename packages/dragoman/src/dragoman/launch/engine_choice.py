"""The choice of a model's engine, from its files."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core.encoder_requests import EncodingTask
from ..engines.sentence_modules import find_declared_task
from .engine_registry import list_engines
from .engine_spec import Acceptance, EngineSpec, ModelConfig


class EngineChoice(Struct, frozen=True):
    """The engine of a model.

    engine: its name; empty if no installed engine supports the model.
    reason: why it was chosen, or what to do if there is none.
    """

    engine: str
    reason: str


class _DetectedConfig(msgspec.Struct):
    architectures: tuple[str, ...] = ()
    classifier_from_token: list[str] | None = None
    quantization: msgspec.Raw = msgspec.Raw(b"null")


def read_model_config(
    config: bytes,
    source: str,
    weights: int,
    modules: bytes | None = None,
    sentence_model: bytes | None = None,
) -> ModelConfig:
    """Read what the files of a model in safetensors format say about it.

    config: the content of config.json.
    source: names that file in messages.
    weights: bytes of the model's weights.
    modules, sentence_model: the contents of modules.json and
        config_sentence_transformers.json; None for a file that does not exist.

    Raises: ValueError if config.json is invalid.
    """
    try:
        decoded = msgspec.json.decode(config, type=_DetectedConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{source}: {error}") from error
    is_quantized = bytes(decoded.quantization) != b"null"
    task = find_declared_task(modules, sentence_model)
    if task is None and decoded.classifier_from_token:
        task = EncodingTask.SCORING
    return ModelConfig(
        decoded.architectures,
        is_quantized,
        is_embedder=task is EncodingTask.EMBEDDINGS,
        is_reranker=task is EncodingTask.SCORING,
        weights=weights,
        has_reranker_name="rerank" in source.lower(),
    )


def read_directory_config(directory: Path) -> ModelConfig:
    """Read what the files of a model directory say about it.

    Raises: OSError, ValueError if config.json cannot be read.
    """
    config = directory / "config.json"
    declarations = [
        path.read_bytes() if path.exists() else None
        for path in (directory / "modules.json", directory / "config_sentence_transformers.json")
    ]
    weights = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    return read_model_config(config.read_bytes(), str(config), weights, *declarations)


def is_engine_installed(spec: EngineSpec) -> bool:
    """Whether the libraries that an engine needs are installed."""
    return are_installed(spec.requires)


def are_installed(modules: tuple[str, ...]) -> bool:
    return all(find_spec(module) is not None for module in modules)


def check_engine_installed(spec: EngineSpec, model: str) -> None:
    """Raise ValueError, with the command that installs the engine, if it is not
    installed.
    """
    if not is_engine_installed(spec):
        raise ValueError(
            f"{model} needs the engine {spec.name}, which is not installed: "
            f"pip install '{spec.install}'"
        )


def choose_engine(config: ModelConfig) -> EngineChoice:
    """Choose the engine of a model in safetensors format: of the installed ones that
    accept it, the one with the lowest rank.

    Raises:
        ValueError: no installed engine accepts it.
    """
    for acceptance, spec in sorted(_find_acceptances(config), key=lambda pair: pair[0].rank):
        if acceptance.problem is not None:
            raise ValueError(acceptance.problem)
        if acceptance.is_only or is_engine_installed(spec):
            return EngineChoice(spec.name, acceptance.reason + _describe_undeclared(config))
    raise ValueError(
        f"{config.architecture} needs an engine that is not installed: {describe_others(config)}"
    )


def _describe_undeclared(config: ModelConfig) -> str:
    """Describe how to serve a model that only its name tells from a chat model.

    The first repositories of Qwen3-Reranker have the class and the files of a chat model;
    vLLM serves them as one too, without `--hf-overrides`.
    """
    if config.is_encoder or not config.has_reranker_name:
        return ""
    return "; if it is a reranker, serve it as `encoder:MODEL`"


def describe_others(config: ModelConfig) -> str:
    """Describe the command that installs an engine which runs the model on this machine;
    empty if there is none.
    """
    commands = [
        f"'{spec.install}'"
        for _, spec in sorted(_find_acceptances(config), key=lambda pair: -pair[0].rank)
        if spec.install and not is_engine_installed(spec)
    ]
    return f"pip install {' or '.join(commands)}" if commands else ""


def _find_acceptances(config: ModelConfig) -> Iterator[tuple[Acceptance, EngineSpec]]:
    for spec in list_engines():
        if spec.local is None or spec.local.format.name != "safetensors" or not spec.local.accepts:
            continue
        acceptance = spec.local.accepts(config)
        if acceptance is not None:
            yield acceptance, spec


def choose_directory_engine(directory: Path) -> EngineChoice:
    """Choose the engine of a model directory, with the reason.

    Raises:
        OSError, ValueError: config.json cannot be read, or no installed engine accepts
            the model.
    """
    return choose_engine(read_directory_config(directory))
