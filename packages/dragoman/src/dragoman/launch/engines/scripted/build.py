"""Builds `scripted` and `scripted:FILE`: the engine that replies from a script, with the
bundled model's tokenizer.
"""

from __future__ import annotations

from pathlib import Path

from ....engines.bundled_model import find_bundled_model
from ....engines.scripted import Script, ScriptedEngine, load_script
from ....pipeline.engine_backends import EventBackend
from ....pipeline.served_model import ServedModel
from ....prompts.hf_tokenizer import load_tokenizer
from ....prompts.tokenizer_info import load_tokenizer_info
from ....serving.clock import Clock
from ....settings import Settings
from ...model_metadata import resolve_served_names

SCRIPTED_CONTEXT = 200_000
"""Context length in tokens. Claude Code assumes as many; its prompts with `--continue`
exceed 32,768.
"""


def build_scripted(settings: Settings, clock: Clock, file: str) -> ServedModel:
    """Build the model.

    file: a script; if empty, replies come from directives in requests.
    """
    directory = find_bundled_model()
    tokenizer = load_tokenizer(directory)
    name, aliases = resolve_served_names(settings, "scripted")
    limit = settings.max_model_len or SCRIPTED_CONTEXT
    engine = ScriptedEngine(
        load_script(Path(file)) if file else Script(),
        tokenizer=tokenizer,
        directives=settings.directives or not file,
        max_model_len=limit,
    )
    info = load_tokenizer_info(directory)
    return ServedModel(
        name, EventBackend(engine, tokenizer), limit, int(clock.now()), aliases, tokenizer_info=info
    )
