"""`tiny` and `tiny:DIRECTORY`: small Llamas in numpy, of which one is part of this package."""

from __future__ import annotations

from pathlib import Path

from ..constraints.matcher import Compiler
from ..core.request import Sampling
from ..engines import tiny
from ..pipeline.models import ServedModel, TokenBackend
from ..pipeline.text import Vocabulary
from ..prompts.render import Renderer
from ..prompts.tokenizer import load_tokenizer
from ..serving.clock import Clock
from ..settings import Settings
from .declared import chat_template, end_of_answer, formats, served_names


def build_tiny(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """path: a directory; empty for the embedded model."""
    directory = Path(path) if path else tiny.embedded()
    tokenizer = load_tokenizer(directory)
    template = chat_template(settings, directory)
    reasoning, tools = formats(settings, directory, template, tokenizer)
    model = tiny.load(
        directory,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs or 64,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        num_kv_tokens=settings.kv_cache_tokens or 131072,
        enable_prefix_caching=settings.enable_prefix_caching,
        max_num_waiting=settings.max_waiting,
    )
    eos = end_of_answer(directory)
    backend = TokenBackend(
        engine=model,
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer),
        compiler=Compiler(tokenizer, sorted(eos)),
        eos=eos,
        renderer=None if template is None else Renderer(template, tokenizer),
        trust_templates=settings.trust_request_chat_template,
    )
    name, aliases = served_names(settings, directory.name if path else "tiny")
    return ServedModel(
        name,
        backend,
        model.max_model_len,
        int(clock.now()),
        aliases,
        sampling=settings.override_generation_config.over(Sampling()),
        max_new_tokens=settings.override_generation_config.max_new_tokens,
        reasoning=reasoning,
        tools=tools,
    )
