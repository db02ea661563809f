"""`scripted` and `scripted:FILE`: the engine that replies from a script, with the bundled model's tokenizer."""

from __future__ import annotations

from pathlib import Path

from ..engines import tiny
from ..engines.scripted import Script, ScriptedEngine, load_script
from ..pipeline.models import EventBackend, ServedModel
from ..prompts.template import load_tokenizer_info
from ..prompts.tokenizer import load_tokenizer
from ..serving.clock import Clock
from ..settings import Settings
from .model_metadata import resolve_served_names

DEFAULT_CONTEXT = 200_000
"""Tokens, as many as Claude Code assumes of a model; its prompt and those of its `--continue` turns exceed 32,768."""


def build_scripted(settings: Settings, clock: Clock, file: str) -> ServedModel:
    """file: a script; empty to take replies from directives in requests."""
    directory = tiny.find_bundled_model()
    tokenizer = load_tokenizer(directory)
    name, aliases = resolve_served_names(settings, "scripted")
    limit = settings.max_model_len or DEFAULT_CONTEXT
    engine = ScriptedEngine(
        load_script(Path(file)) if file else Script(),
        tokenizer=tokenizer,
        directives=settings.directives or not file,
        max_model_len=limit,
    )
    info = load_tokenizer_info(directory)
    return ServedModel(name, EventBackend(engine, tokenizer), limit, int(clock.now()), aliases, tokenizer_info=info)
