"""Serve a directory in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from dragoman.engines import encoder_engine
from dragoman.engines.batched_encoder import BatchedScorer
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EmbedderBackend, ScorerBackend
from dragoman.pipeline.served_model import ServedModel
from dragoman.prompts.hf_tokenizer import load_tokenizer
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


@asynccontextmanager
async def serve_numpy_encoder(directory: Path) -> AsyncGenerator[ServedModel]:
    """Serve an encoder as where the library is not installed."""
    engine = encoder_engine.load(directory)
    tokenizer = load_tokenizer(directory, generates=False)
    if isinstance(engine, BatchedScorer):
        backend = ScorerBackend(engine, tokenizer, query_prompt=engine.query_prompt)
        limit = engine.max_tokens
    else:
        backend = EmbedderBackend(engine, tokenizer)
        limit = engine.embedding_info.max_tokens
    await engine.start()
    try:
        yield ServedModel("numpy", backend, limit, created=0)
    finally:
        await engine.stop()
