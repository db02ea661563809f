"""The tokenizer class decides how a text is split, as in transformers 5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.prompts.hf_tokenizer import HfTokenizer, load_tokenizer

from .class_vocabularies import build_bytes, build_sentence_pieces


def load(
    directory: Path,
    tokenizer: dict[str, object],
    model_type: str = "llama",
    **config: Any,
) -> HfTokenizer:
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    return load_tokenizer(directory)


def split(tokenizer: HfTokenizer, text: str) -> bytes:
    """Join the tokens of a text with bars."""
    ids = tokenizer.encode(text, special=True)
    return b"|".join(tokenizer.token_bytes(id) for id in ids)


@pytest.mark.parametrize("name", ["LlamaTokenizer", "LlamaTokenizerFast"])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, b"<s>|hello"),
        ({"legacy": False}, b"<s>|hello"),
        ({"legacy": None}, b"<s>|hello"),
        ({"legacy": True}, b"<s>| hello"),
        ({"legacy": True, "add_prefix_space": False}, b"<s>|hello"),
    ],
)
def test_llama_class_puts_space_only_at_start(
    name: str, fields: dict[str, Any], expected: bytes, tmp_path: Path
) -> None:
    tokenizer = load(tmp_path, build_sentence_pieces(), tokenizer_class=name, **fields)
    assert split(tokenizer, "<s>hello").replace(b"he|llo", b"hello") == expected
    start = b"hello" if fields.get("add_prefix_space") is False else b" hello"
    assert split(tokenizer, "hello").replace(b"he|llo", b"hello") == start


def test_llama_class_adds_no_space_before_space(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, build_sentence_pieces(), tokenizer_class="LlamaTokenizer")
    assert split(tokenizer, " hello") == b" hello"


def test_load_tokenizer_is_shared_only_with_same_class_rules(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in ("first", "legacy", "same", "plain")]
    for directory in directories:
        directory.mkdir()
    pieces = build_sentence_pieces()
    first, legacy, same = directories[:3]
    tokenizer = load(first, pieces, tokenizer_class="LlamaTokenizer")
    other = load(legacy, pieces, tokenizer_class="LlamaTokenizer", legacy=True)
    assert split(tokenizer, "<s>hello").startswith(b"<s>|h")
    assert split(other, "<s>hello").startswith(b"<s>| h")
    # Another type and an unused field change nothing.
    equal = load(same, pieces, "gemma", tokenizer_class="LlamaTokenizerFast", sep_token="[S]")
    assert equal is tokenizer
    assert load(directories[3], pieces) is not tokenizer


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("mistral", {"tokenizer_class": "LlamaTokenizer"}),
        ("phi3", {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
        ("llama", {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ("llama", {"tokenizer_class": "LlamaTokenizer", "auto_map": {"AutoTokenizer": ["a", "b"]}}),
        ("llama", {}),
    ],
)
def test_other_models_and_classes_use_file(
    model_type: str, config: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = load(tmp_path, build_sentence_pieces(), model_type, **config)
    assert split(tokenizer, " hello") == b"  |hello"


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizer"])
@pytest.mark.parametrize(("field", "expected"), [(True, b" |hell|o"), (False, b"hell|o")])
@pytest.mark.parametrize("in_file", [True, False])
def test_byte_level_class_reads_add_prefix_space(
    name: str, field: bool, expected: bytes, in_file: bool, tmp_path: Path
) -> None:
    tokenizer = load(
        tmp_path,
        build_bytes(add_prefix_space=in_file),
        "gpt2",
        tokenizer_class=name,
        add_prefix_space=field,
    )
    assert split(tokenizer, "hello") == expected


def test_llama_class_on_byte_level_file_uses_file(tmp_path: Path) -> None:
    config: dict[str, Any] = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": True}
    tokenizer = load(tmp_path, build_bytes(), **config)
    assert split(tokenizer, "hello") == b"hell|o"


def test_qwen2_class_splits_digits(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, build_bytes(), "qwen3", tokenizer_class="Qwen2Tokenizer")
    assert split(tokenizer, "hello") == b"hell|o"
    assert tokenizer.encode("e\u0301", special=True) == tokenizer.encode("\u00e9", special=True)


def test_roberta_class_wraps_texts(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, build_bytes(), "roberta", tokenizer_class="RobertaTokenizer")
    wrapping = tokenizer.wrapping
    assert (wrapping.prefix, wrapping.suffix) == ((0,), (1,))
    assert wrapping.pair_separator == (1, 1)
    assert wrapping.pair_types == ((0,), 0, (0, 0), 0, (0,))
