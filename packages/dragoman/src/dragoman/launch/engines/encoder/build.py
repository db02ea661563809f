"""Builds `encoder:DIRECTORY`: a model that embeds texts or scores pairs of texts."""

from __future__ import annotations

from pathlib import Path

from ....engines import encoder_engine as encoder
from ....engines.batched_encoder import BatchedScorer
from ....pipeline.engine_backends import EmbedderBackend, ScorerBackend
from ....pipeline.served_model import ServedModel
from ....prompts.hf_tokenizer import load_tokenizer
from ....prompts.tokenizer_info import load_tokenizer_info
from ....serving.clock import Clock
from ....settings import Settings
from ...engine_choice import read_directory_config
from ...model_metadata import load_chat_template, resolve_served_names
from ...unsupported_settings import report_ignored
from .generative_reranker import read_generative_reranker
from .library import describe_ignored, runs_on_library


def build_encoder(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build the model.

    path: a directory with config.json, tokenizer.json and *.safetensors.
    """
    directory = Path(path)
    config = read_directory_config(directory)
    tokenizer = load_tokenizer(directory, generates=False)
    reranker = None
    if config.generates_text and not config.is_embedder:
        template = load_chat_template(settings, directory)
        reranker = read_generative_reranker(directory, tokenizer, template)
    own_name = directory.resolve().name
    on_library = runs_on_library(config)
    report_ignored(
        settings,
        describe_ignored(
            settings,
            own_name,
            on_library=on_library,
            renders_pairs=reranker is not None and reranker.template is not None,
        ),
    )
    if on_library:
        from ....engines.transformers import encoder as library_encoder  # noqa: PLC0415 - needs torch
        from ..transformers.build import read_options  # noqa: PLC0415 - as above

        engine = library_encoder.load(
            directory,
            read_options(settings),
            reranker=None if reranker is None else reranker.config,
            max_model_len=settings.max_model_len,
            max_waiting=settings.max_queued_requests,
        )
    else:
        engine = encoder.load(
            directory,
            max_model_len=settings.max_model_len,
            max_waiting=settings.max_queued_requests,
        )
    name, aliases = resolve_served_names(settings, own_name)
    if isinstance(engine, BatchedScorer):
        backend = ScorerBackend(
            engine,
            tokenizer,
            None if reranker is None else reranker.template,
            engine.query_prompt if reranker is None else reranker.query_prompt,
        )
        limit = engine.max_tokens
    else:
        backend = EmbedderBackend(engine, tokenizer)
        limit = engine.embedding_info.max_tokens
    info = load_tokenizer_info(directory)
    return ServedModel(name, backend, limit, int(clock.now()), aliases, tokenizer_info=info)
