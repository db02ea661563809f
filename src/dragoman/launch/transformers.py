"""`transformers:DIRECTORY`: any causal language model of the transformers library."""

from __future__ import annotations

from pathlib import Path

from ..engines import transformers
from ..pipeline.adapters import Adapters, read_adapter
from ..pipeline.models import ServedModel
from ..serving.clock import Clock
from ..settings import Settings
from .model_builder import build_batching_model, build_block_files, build_engine_limits


def build_transformers(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """path: a directory of config.json, tokenizer.json and *.safetensors."""
    directory = Path(path)
    options = transformers.TransformersOptions(
        settings.dtype,
        settings.device,
        settings.trust_remote_code,
        settings.quantization,
        settings.attention_backend,
        settings.threads,
    )
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
