"""`tiny` and `tiny:DIRECTORY`: small Llamas in numpy, of which one is part of this package."""

from __future__ import annotations

from pathlib import Path

from ..engines import tiny
from ..pipeline.models import ServedModel
from ..serving.clock import Clock
from ..settings import Settings
from .around import block_files, limits, serve_tokens


def build_tiny(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """path: a directory; empty for the embedded model."""
    directory = Path(path) if path else tiny.embedded()
    engine = tiny.load(directory, limits(settings), files=block_files(settings, directory, "dragoman"))
    name = directory.name if path else "tiny"
    return serve_tokens(settings, clock, directory, engine, own_name=name, embedder=engine.embedder)
