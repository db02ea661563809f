"""Builds `transformers:DIRECTORY`: any causal language model of the transformers library."""

from __future__ import annotations

from pathlib import Path

from ....engines import transformers
from ....engines.transformers import TransformersOptions
from ....pipeline.lora_adapters import Adapters, read_adapter
from ....pipeline.served_model import ServedModel
from ....serving.clock import Clock
from ....settings import Settings
from ...model_builder import build_batching_model, build_block_files, build_engine_limits
from .settings import TransformersSettings


def build_transformers(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build the model.

    path: a directory with config.json, tokenizer.json and *.safetensors.
    """
    directory = Path(path)
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
