"""Small vocabularies of SentencePiece's and GPT-2's kind, as tokenizer.json."""

from __future__ import annotations

from typing import Any

from dragoman.prompts.tokenizer_file import build_byte_alphabet

SPACE = "\u2581"
TEXTS = (
    "hello",
    " leading space",
    "  two",
    "a hello",
    "</s><s>[INST] x",
    "<s>hello</s>hello <s> hello",
    "\nab",
    "ü€",
    "hello   a  ",
)
BYTE_SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<s>", "pad_token": "<s>"}
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def build_sentence_pieces(
    pre_tokenizer: dict[str, Any] | None = None, *, prepends: bool = True
) -> dict[str, Any]:
    """Build a byte-pair encoding with byte fallback, as converted from SentencePiece.

    prepends: a normalizer puts a space before every text, as in Llama 2's file.
    """
    merges = [("i", "n"), ("h", "e"), ("l", "o"), ("l", "lo"), (SPACE, "a"), (SPACE, SPACE)]
    merges += [(SPACE, "he"), (f"{SPACE}he", "llo"), ("he", "llo"), (SPACE, "x")]
    specials = ["<unk>", "<s>", "</s>"]
    words = [
        *specials,
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *(SPACE, *"abcdefghijklmnopqrstuvwxyz[]INST/<>"),
        *(first + second for first, second in merges),
    ]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    model = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return _build(
        words,
        specials,
        merges,
        normalizer={"type": "Sequence", "normalizers": [prepend, replace]} if prepends else None,
        pre_tokenizer=pre_tokenizer,
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        model=model,
    )


def build_bytes(*, add_prefix_space: bool = False) -> dict[str, Any]:
    """Build a byte-level encoding."""
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "a"), ("Ġ", "h"), ("Ġh", "e")]
    specials = ["<s>", "</s>"]
    words = [
        *specials,
        *build_byte_alphabet(),
        *(first + second for first, second in merges),
    ]
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return _build(
        words,
        specials,
        merges,
        normalizer=None,
        pre_tokenizer=byte_level | {"add_prefix_space": add_prefix_space},
        decoder=byte_level | {"add_prefix_space": True},
        model={},
    )


def _build(
    words: list[str],
    specials: list[str],
    merges: list[tuple[str, str]],
    *,
    model: dict[str, Any],
    **parts: Any,
) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": name, "special": True, **flags}
            for id, name in enumerate(specials)
        ],
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, first],
            "pair": [bos, first, second],
            "special_tokens": {
                "<s>": {"id": "<s>", "ids": [words.index("<s>")], "tokens": ["<s>"]}
            },
        },
        "model": {
            "type": "BPE",
            "vocab": {word: id for id, word in enumerate(words)},
            "merges": [f"{first} {second}" for first, second in merges],
            **model,
        },
        **parts,
    }
