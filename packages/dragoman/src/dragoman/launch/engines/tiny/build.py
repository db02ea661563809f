"""Builds `tiny` and `tiny:DIRECTORY`: small Llamas on numpy."""

from __future__ import annotations

from pathlib import Path

from ....engines import tiny
from ....engines.bundled_model import find_bundled_model
from ....pipeline.served_model import ServedModel
from ....serving.clock import Clock
from ....settings import Settings
from ...model_builder import build_batching_model, build_block_files, build_engine_limits


def build_tiny(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build the model.

    path: a directory; empty for the bundled model.
    """
    directory = Path(path) if path else find_bundled_model()
    engine = tiny.load(
        directory,
        build_engine_limits(settings),
        files=build_block_files(settings, directory, "dragoman"),
        populates_cache=True,
    )
    name = directory.name if path else "tiny"
    return build_batching_model(
        settings, clock, directory, engine, own_name=name, embedder=engine.embedder
    )
