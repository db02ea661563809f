"""Token ids equal those of the library's AutoTokenizer for every class and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")

from tests.prompts.class_vocabularies import (
    BYTE_SPECIALS,
    SPECIALS,
    TEXTS,
    build_bytes,
    build_sentence_pieces,
)

from dragoman.engines.transformers.backend import library
from dragoman.prompts.hf_tokenizer import load_tokenizer

pytestmark = pytest.mark.torch

PIECES = [
    {"tokenizer_class": name, **fields}
    for name in ("LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer")
    for fields in (
        {},
        {"legacy": None},
        {"legacy": True},
        {"legacy": False},
        {"add_prefix_space": True},
        {"add_prefix_space": False},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": False},
    )
    if not (name in ("CodeLlamaTokenizer", "GemmaTokenizer") and "legacy" in fields)
]
BYTES = [
    (kind, {"tokenizer_class": name, **fields})
    for name, kind in (
        ("GPT2Tokenizer", "gpt2"),
        ("GPT2TokenizerFast", "llama"),
        ("GPTNeoXTokenizer", "gpt_neox"),
        ("Qwen2Tokenizer", "qwen2"),
        ("Qwen2TokenizerFast", "qwen3"),
        ("LlamaTokenizerFast", "qwen2"),
        ("LlamaTokenizer", "llama"),
        ("PreTrainedTokenizerFast", "gpt2"),
        ("RobertaTokenizer", "roberta"),
    )
    for fields in (
        {},
        {"add_prefix_space": True},
        {"add_prefix_space": False},
        {"add_bos_token": True},
    )
]


def check_ids(directory: Path) -> None:
    theirs = library.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    ours = load_tokenizer(directory)
    for text in TEXTS:
        for adds in (False, True):
            expected = theirs.encode(text, add_special_tokens=adds)
            assert ours.encode(text, special=True, add_special_tokens=adds) == expected, text


def write(directory: Path, tokenizer: object, config: dict[str, object], model_type: str) -> None:
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma", "phi3"])
@pytest.mark.parametrize("config", PIECES, ids=str)
def test_piece_ids_match_library(
    config: dict[str, object], model_type: str, tmp_path: Path
) -> None:
    write(tmp_path, build_sentence_pieces(), {**SPECIALS, **config}, model_type)
    check_ids(tmp_path)


@pytest.mark.parametrize("add_prefix_space", [True, False])
@pytest.mark.parametrize(("model_type", "config"), BYTES, ids=str)
def test_byte_ids_match_library(
    model_type: str, config: dict[str, object], add_prefix_space: bool, tmp_path: Path
) -> None:
    tokenizer = build_bytes(add_prefix_space=add_prefix_space)
    write(tmp_path, tokenizer, {**BYTE_SPECIALS, **config}, model_type)
    check_ids(tmp_path)
