"""A simulated model whose vocabulary has tokens for fill-in-the-middle."""

from __future__ import annotations

import json
from pathlib import Path

from dragoman.engines import tiny
from dragoman.launch import build_models
from dragoman.pipeline.model_registry import Models
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

NAMES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")


def build_infill_models(directory: Path) -> tuple[Models, int]:
    """Build the model `coder`. Return it and the id of the first of `NAMES`; those of
    the others follow.
    """
    for file in tiny.find_bundled_model().glob("*.json"):
        (directory / file.name).write_bytes(file.read_bytes())
    vocabulary = json.loads((directory / "tokenizer.json").read_text())
    size = 1 + max(
        *vocabulary["model"]["vocab"].values(),
        *(token["id"] for token in vocabulary["added_tokens"]),
    )
    vocabulary["added_tokens"] += [
        {**vocabulary["added_tokens"][0], "id": size + i, "content": name}
        for i, name in enumerate(NAMES)
    ]
    (directory / "tokenizer.json").write_text(json.dumps(vocabulary))
    settings = Settings(model="sim", served_model_name=("coder",)).replace(tokenizer=str(directory))
    return build_models(settings, SystemClock()), size
