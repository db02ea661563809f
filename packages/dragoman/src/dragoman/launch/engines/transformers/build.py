"""Builds `transformers:DIRECTORY`: any causal language model of the transformers library."""

from __future__ import annotations

from pathlib import Path

from ....engines import transformers
from ....engines.transformers import TransformersOptions
from ....engines.transformers.whisper import load as load_whisper
from ....pipeline.engine_backends import TranscriberBackend
from ....pipeline.lora_adapters import Adapters, read_adapter
from ....pipeline.served_model import ServedModel
from ....serving.clock import Clock
from ....settings import Settings, find_changed_settings
from ....settings.engine_settings import BATCHING_SETTINGS
from ....settings.fields import FIELDS_BY_NAME
from ...engine_choice import read_directory_config
from ...model_builder import build_batching_model, build_block_files, build_engine_limits
from ...model_metadata import resolve_served_names
from ...unsupported_settings import report_ignored
from .settings import TransformersSettings

_NOT_FOR_WHISPER = BATCHING_SETTINGS | {
    "attention_backend",
    "lora_modules",
    "max_model_len",
    "sampling_device",
}


def build_transformers(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build the model.

    path: a directory with config.json, tokenizer.json and *.safetensors.
    """
    directory = Path(path)
    if read_directory_config(directory).is_whisper:
        return _build_whisper(settings, clock, directory)
    device = settings.of(TransformersSettings).device
    files = build_block_files(settings, directory, "transformers", device)
    loaded = transformers.load(
        directory, build_engine_limits(settings), read_options(settings), files
    )
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


def _build_whisper(settings: Settings, clock: Clock, directory: Path) -> ServedModel:
    changed = find_changed_settings(settings)
    report_ignored(
        settings,
        [
            f"{FIELDS_BY_NAME[name].flag} would be ignored for {directory}: it is a Whisper model"
            for name in sorted(_NOT_FOR_WHISPER & changed)
        ],
    )
    engine = load_whisper(
        directory, read_options(settings), max_waiting=settings.max_queued_requests
    )
    name, aliases = resolve_served_names(settings, directory.resolve().name)
    created = int(clock.now())
    return ServedModel(name, TranscriberBackend(engine), engine.max_tokens, created, aliases)


def read_options(settings: Settings) -> TransformersOptions:
    """Read the options of a network of the library from the settings."""
    own = settings.of(TransformersSettings)
    return TransformersOptions(
        settings.dtype,
        own.device,
        settings.trust_remote_code,
        own.quantization,
        own.attention_backend,
        settings.threads,
        own.sampling_device,
    )
