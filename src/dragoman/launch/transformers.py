"""`transformers:DIRECTORY`: any causal language model of the transformers library."""

from __future__ import annotations

from pathlib import Path

from ..engines import transformers
from ..pipeline.adapters import Adapters, read_adapter
from ..pipeline.models import ServedModel
from ..serving.clock import Clock
from ..settings import Settings
from .around import block_files, limits, serve_tokens


def build_transformers(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """path: a directory of config.json, tokenizer.json and *.safetensors."""
    directory = Path(path)
    options = transformers.LoadOptions(
        settings.dtype,
        settings.device,
        settings.trust_remote_code,
        settings.quantization,
        settings.attention_backend,
    )
    files = block_files(settings, directory, "transformers")
    loaded = transformers.load(directory, limits(settings), options, files)
    given = tuple(read_adapter(text) for text in settings.lora_modules)
    for adapter in given:
        loaded.adapters.put(adapter.name, adapter.path)
    name = directory.resolve().name
    return serve_tokens(
        settings,
        clock,
        directory,
        loaded.engine,
        own_name=name,
        vision=loaded.vision,
        adapters=Adapters(given, loaded.adapters),
    )
