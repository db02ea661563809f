"""The end-of-sequence ids of a model's directory, from all files that can name them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines import tiny
from dragoman.launch import build_models
from dragoman.launch.model_metadata import load_eos_ids
from dragoman.pipeline.engine_backends import TokenBackend
from dragoman.prompts.hf_tokenizer import load_tokenizer
from dragoman.serving.clock import SystemClock
from dragoman.settings import load_settings

TURN_END = 2
"""The id of `<|im_end|>` in the bundled tokenizer."""
FILES = (
    "generation_config.json",
    "config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.find_bundled_model(), tmp_path / "model"))


def find_ids(directory: Path, **files: dict[str, Any]) -> set[int]:
    """Return the ids of a directory with only these configurations."""
    for name in FILES:
        (directory / name).unlink(missing_ok=True)
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return set(load_eos_ids(directory, load_tokenizer(directory)))


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"generation_config": {"eos_token_id": [5, 6]}}, {5, 6}),
        ({"config": {"eos_token_id": 7}}, {7}),
        ({"config": {"text_config": {"eos_token_id": [7, 8]}}}, {7, 8}),
        ({"config": {"thinker_config": {"text_config": {"eos_token_id": 7}}}}, {7}),
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, {TURN_END}),
        ({"tokenizer_config": {"eos_token": {"content": "<|im_end|>"}}}, {TURN_END}),
        ({"special_tokens_map": {"eos_token": "<|im_end|>"}}, {TURN_END}),
        (
            {
                "generation_config": {"eos_token_id": [5]},
                "config": {"eos_token_id": 7, "text_config": {"eos_token_id": 8}},
                "tokenizer_config": {"eos_token": "<|im_end|>"},
            },
            {5, 7, 8, TURN_END},
        ),
        (
            {
                "generation_config": {"eos_token_id": None},
                "config": {"eos_token_id": -1, "text_config": None},
                "tokenizer_config": {"eos_token": "<|im_end|>"},
            },
            {TURN_END},
        ),
        ({"config": {"eos_token_id": 7}, "tokenizer_config": {"eos_token": "absent"}}, {7}),
    ],
)
def test_load_eos_ids_joins_ids_of_all_files(
    directory: Path, files: dict[str, dict[str, Any]], ids: set[int]
):
    assert find_ids(directory, **files) == ids


def test_load_eos_ids_without_any_id_raises_value_error(directory: Path):
    with pytest.raises(ValueError, match="has no eos_token_id in generation_config"):
        find_ids(directory, config={}, tokenizer_config={"eos_token": None})


def test_load_eos_ids_invalid_file_raises_error_with_its_name(directory: Path):
    with pytest.raises(ValueError, match=r"generation_config\.json: "):
        find_ids(directory, generation_config={"eos_token_id": "<|im_end|>"})


@pytest.mark.parametrize("engine", ["tiny", "sim"])
def test_model_stops_at_eos_of_tokenizer_config(directory: Path, engine: str):
    (directory / "generation_config.json").write_text('{"eos_token_id": [5]}')
    config = json.loads((directory / "config.json").read_text()) | {"eos_token_id": None}
    (directory / "config.json").write_text(json.dumps(config))
    values = (
        {"model": f"tiny:{directory}"}
        if engine == "tiny"
        else {"model": "sim", "tokenizer": str(directory)}
    )
    settings = load_settings(values, {})
    (model,) = build_models(settings, SystemClock())
    assert isinstance(model.backend, TokenBackend)
    assert model.backend.eos == {5, TURN_END}
