"""Serve a directory in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from dragoman.launch import build_models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings


@asynccontextmanager
async def serve_model(directory: Path, engine: str = "") -> AsyncGenerator[ServedModel]:
    """Serve a model in float32 on one thread. engine: the prefix of MODEL."""
    settings = Settings().replace(
        model=f"{engine}{directory}", device="cpu", dtype="float32", threads=1
    )
    models = build_models(settings, SystemClock())
    await models.start()
    try:
        (model,) = models
        yield model
    finally:
        await models.stop()
