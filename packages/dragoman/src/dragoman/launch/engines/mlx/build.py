"""Builds `mlx:DIRECTORY`: a model of mlx-lm."""

from __future__ import annotations

from pathlib import Path

from ....engines import mlx
from ....pipeline.served_model import ServedModel
from ....serving.clock import Clock
from ....settings import Settings
from ...model_builder import build_batching_model, build_block_files, build_engine_limits


def build_mlx(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build the model.

    path: a directory with config.json, tokenizer.json and *.safetensors.
    """
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
