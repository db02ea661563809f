"""`mlx:DIRECTORY`: a model of mlx-lm."""

from __future__ import annotations

from pathlib import Path

from ..engines import mlx
from ..pipeline.models import ServedModel
from ..serving.clock import Clock
from ..settings import Settings
from .around import block_files, limits, serve_tokens


def build_mlx(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """path: a directory of config.json, tokenizer.json and *.safetensors."""
    directory = Path(path)
    engine = mlx.load(
        directory,
        limits(settings),
        dtype=settings.dtype,
        trust_remote_code=settings.trust_remote_code,
        files=block_files(settings, directory, "mlx-lm"),
    )
    name = directory.resolve().name
    return serve_tokens(settings, clock, directory, engine, own_name=name)
