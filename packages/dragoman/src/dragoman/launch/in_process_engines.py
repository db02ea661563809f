"""Builds models on the engines that run in this process; each engine is imported when
it is chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..pipeline.engine_backends import EmbedderBackend, EventBackend, ScorerBackend
from ..pipeline.lora_adapters import Adapters, read_adapter
from ..pipeline.served_model import ServedModel
from ..prompts.hf_tokenizer import load_tokenizer
from ..prompts.tokenizer_info import load_tokenizer_info
from ..serving.clock import Clock
from ..settings import (
    Settings,
)
from .engine_choice import embeds_with_transformers
from .model_builder import build_batching_model, build_block_files, build_engine_limits
from .model_metadata import resolve_served_names

if TYPE_CHECKING:
    from ..engines.transformers import TransformersOptions

SCRIPTED_CONTEXT = 200_000
"""Context length in tokens. Claude Code assumes as many; its prompts with `--continue`
exceed 32,768.
"""


def build_tiny(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build `tiny` and `tiny:DIRECTORY`: small Llamas on numpy.

    path: a directory; empty for the bundled model.
    """
    from ..engines import tiny  # noqa: PLC0415 - numpy takes long to import

    directory = Path(path) if path else tiny.find_bundled_model()
    engine = tiny.load(
        directory,
        build_engine_limits(settings),
        files=build_block_files(settings, directory, "dragoman"),
    )
    name = directory.name if path else "tiny"
    return build_batching_model(
        settings, clock, directory, engine, own_name=name, embedder=engine.embedder
    )


def build_transformers(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build `transformers:DIRECTORY`: any causal language model of the transformers
    library.

    path: a directory with config.json, tokenizer.json and *.safetensors.
    """
    from ..engines import transformers  # noqa: PLC0415 - needs torch, an optional dependency

    directory = Path(path)
    options = _read_transformers_options(settings)
    files = build_block_files(settings, directory, "transformers")
    loaded = transformers.load(directory, build_engine_limits(settings), options, files)
    adapters = tuple(read_adapter(text) for text in settings.lora_modules)
    for adapter in adapters:
        loaded.adapters.load(adapter.name, adapter.path)
    name = directory.resolve().name
    return build_batching_model(
        settings,
        clock,
        directory,
        loaded.engine,
        own_name=name,
        vision=loaded.vision,
        adapters=Adapters(adapters, loaded.adapters),
    )


def _read_transformers_options(settings: Settings) -> TransformersOptions:
    from ..engines import transformers  # noqa: PLC0415 - needs torch, an optional dependency

    return transformers.TransformersOptions(
        settings.dtype,
        settings.device,
        settings.trust_remote_code,
        settings.quantization,
        settings.attention_backend,
        settings.threads,
        settings.sampling_device,
    )


def build_mlx(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build `mlx:DIRECTORY`: a model of mlx-lm.

    path: a directory with config.json, tokenizer.json and *.safetensors.
    """
    from ..engines import mlx  # noqa: PLC0415 - needs mlx, an optional dependency

    directory = Path(path)
    engine = mlx.load(
        directory,
        build_engine_limits(settings),
        dtype=settings.dtype,
        trust_remote_code=settings.trust_remote_code,
        files=build_block_files(settings, directory, "mlx-lm"),
    )
    name = directory.resolve().name
    return build_batching_model(settings, clock, directory, engine, own_name=name)


def build_encoder(settings: Settings, clock: Clock, directory: Path) -> ServedModel:
    """Build `encoder:DIRECTORY`: a model that embeds texts or scores pairs of texts."""
    from ..engines import encoder_engine as encoder  # noqa: PLC0415 - numpy takes long to import

    if embeds_with_transformers(directory):
        from ..engines.transformers import embedder  # noqa: PLC0415 - needs torch

        engine = embedder.load(
            directory,
            _read_transformers_options(settings),
            max_model_len=settings.max_model_len,
            max_waiting=settings.max_queued_requests,
        )
    else:
        engine = encoder.load(
            directory,
            max_model_len=settings.max_model_len,
            max_waiting=settings.max_queued_requests,
        )
    tokenizer = load_tokenizer(directory, generates=False)
    name, aliases = resolve_served_names(settings, directory.resolve().name)
    if isinstance(engine, encoder.BertScorer):
        backend = ScorerBackend(engine, tokenizer)
        limit = engine.max_tokens
    else:
        backend = EmbedderBackend(engine, tokenizer)
        limit = engine.embedding_info.max_tokens
    info = load_tokenizer_info(directory)
    return ServedModel(name, backend, limit, int(clock.now()), aliases, tokenizer_info=info)


def build_scripted(settings: Settings, clock: Clock, file: str) -> ServedModel:
    """Build `scripted` and `scripted:FILE`: the engine that replies from a script, with
    the bundled model's tokenizer.

    file: a script; if empty, replies come from directives in requests.
    """
    from ..engines import tiny  # noqa: PLC0415 - numpy takes long to import
    from ..engines.scripted import Script, ScriptedEngine, load_script  # noqa: PLC0415

    directory = tiny.find_bundled_model()
    tokenizer = load_tokenizer(directory)
    name, aliases = resolve_served_names(settings, "scripted")
    limit = settings.max_model_len or SCRIPTED_CONTEXT
    engine = ScriptedEngine(
        load_script(Path(file)) if file else Script(),
        tokenizer=tokenizer,
        directives=settings.directives or not file,
        max_model_len=limit,
    )
    info = load_tokenizer_info(directory)
    return ServedModel(
        name, EventBackend(engine, tokenizer), limit, int(clock.now()), aliases, tokenizer_info=info
    )
