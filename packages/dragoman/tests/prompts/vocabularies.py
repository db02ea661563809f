"""Small tokenizers of every generative kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dragoman.engines.tiny
from dragoman.prompts.hf_tokenizer import HfTokenizer, load_tokenizer
from dragoman.prompts.tokenizer_file import build_byte_alphabet

EMBEDDED = Path(dragoman.engines.tiny.__file__).parent / "data"
Data = dict[str, Any]

CONTROLS = (
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[INST]",
    "### End:",
)
BYTES = {byte: char for char, byte in build_byte_alphabet().items()}
BLANK = "\u2581"


def added(id: int, content: str, **flags: bool) -> Data:
    defaults = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {"id": id, "content": content, **defaults, **flags}


def byte_level_data(controls: tuple[str, ...] = CONTROLS, **flags: bool) -> Data:
    """Build a byte-level BPE vocabulary that also contains control tokens and whole
    words.
    """
    merges = [("t", "h"), ("th", "e"), ("h", "e"), ("Ġ", "the"), ("<", "t"), ("l", "l"), ("Ġ", "Ġ")]
    words = [*(BYTES[n] for n in range(256)), *("".join(pair) for pair in merges), *controls]
    vocab = {word: id for id, word in enumerate(words)}
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "added_tokens": [
            added(vocab[name], name, special=name[0] == "<", **flags) for name in controls
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [list(pair) for pair in merges],
            "ignore_merges": True,
        },
    }


def sentencepiece_data(controls: tuple[str, ...] = CONTROLS) -> Data:
    """Build Llama 2's kind: a space before every piece, bytes as tokens, a BOS from the
    post-processor.
    """
    merges = [("t", "h"), ("th", "e"), (BLANK, "the"), ("h", "i"), (BLANK, "hi")]
    letters = [BLANK, *"abcdefghijklmnopqrstuvwxyz<>|_/[]#:."]
    words = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *letters]
    words += ["".join(pair) for pair in merges] + list(controls)
    vocab = {word: id for id, word in enumerate(words)}
    names = ("<unk>", "<s>", "</s>", *controls)
    return {
        "version": "1.0",
        "added_tokens": [added(vocab[name], name) for name in names],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": BLANK},
                {"type": "Replace", "pattern": {"String": " "}, "content": BLANK},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": _sentencepiece_decoder(),
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": [list(pair) for pair in merges],
        },
    }


def metaspace_data(scheme: str = "first") -> Data:
    """Build the same with a pre-tokenizer that prepends a space only to the first
    piece.
    """
    data = sentencepiece_data()
    metaspace = {
        "type": "Metaspace",
        "replacement": BLANK,
        "prepend_scheme": scheme,
        "split": False,
    }
    return data | {"normalizer": None, "pre_tokenizer": metaspace}


def unigram_data() -> Data:
    """Build a vocabulary in which the names of control tokens are ordinary pieces."""
    data = sentencepiece_data()
    vocab = data["model"]["vocab"]
    pieces = [[word, -20.0 if len(word) == 1 else -1.0] for word in vocab]
    model = {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": pieces}
    metaspace = {
        "type": "Metaspace",
        "replacement": BLANK,
        "prepend_scheme": "always",
        "split": True,
    }
    return data | {"normalizer": {"type": "NFKC"}, "pre_tokenizer": metaspace, "model": model}


def _sentencepiece_decoder() -> Data:
    steps: list[Data] = [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return {"type": "Sequence", "decoders": steps}


def build_tokenizer(data: Data) -> HfTokenizer:
    return HfTokenizer(json.dumps(data))


def embedded() -> HfTokenizer:
    return load_tokenizer(EMBEDDED)


def all_kinds() -> dict[str, HfTokenizer]:
    return {
        "embedded": embedded(),
        "byte level": build_tokenizer(byte_level_data()),
        "byte level, stripping": build_tokenizer(byte_level_data(rstrip=True, lstrip=True)),
        "byte level, normalized": build_tokenizer(byte_level_data(normalized=True)),
        "sentencepiece": build_tokenizer(sentencepiece_data()),
        "metaspace first": build_tokenizer(metaspace_data()),
        "metaspace always": build_tokenizer(metaspace_data("always")),
        "unigram": build_tokenizer(unigram_data()),
    }
