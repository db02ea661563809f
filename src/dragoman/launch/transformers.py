"""`transformers:DIRECTORY`: any causal language model of the transformers library."""

from __future__ import annotations

from pathlib import Path

from ..engines import transformers
from ..pipeline.models import ServedModel
from ..serving.clock import Clock
from ..settings import Settings
from .around import serve_tokens


def build_transformers(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """path: a directory of config.json, tokenizer.json and *.safetensors."""
    directory = Path(path)
    engine = transformers.load(
        directory,
        options=transformers.LoadOptions(settings.dtype, settings.device, settings.trust_remote_code),
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs or 64,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        num_kv_tokens=settings.kv_cache_tokens,
        enable_prefix_caching=settings.enable_prefix_caching,
        max_num_waiting=settings.max_waiting,
    )
    name = directory.resolve().name
    return serve_tokens(settings, clock, directory, engine, own_name=name, max_model_len=engine.max_model_len)
