"""`encoder:DIRECTORY`: a model that embeds texts or scores pairs of texts."""

from __future__ import annotations

from pathlib import Path

from ..engines import encoder
from ..pipeline.models import EmbedderBackend, ScorerBackend, ServedModel
from ..prompts.template import load_tokenizer_info
from ..prompts.tokenizer import load_tokenizer
from ..serving.clock import Clock
from ..settings import Settings
from .model_metadata import resolve_served_names


def build_encoder(settings: Settings, clock: Clock, directory: Path) -> ServedModel:
    engine = encoder.load(directory, max_model_len=settings.max_model_len, max_waiting=settings.max_queued_requests)
    tokenizer = load_tokenizer(directory, generates=False)
    name, aliases = resolve_served_names(settings, directory.resolve().name)
    match engine:
        case encoder.BertEmbedder():
            backend, limit = EmbedderBackend(engine, tokenizer), engine.embedding_info.max_tokens
        case encoder.BertScorer():
            backend, limit = ScorerBackend(engine, tokenizer), engine.max_tokens
    info = load_tokenizer_info(directory)
    return ServedModel(name, backend, limit, int(clock.now()), aliases, tokenizer_info=info)
