"""Converts the vocabulary of a GGUF file to a `tokenizer.json`, so that all models use
the same tokenizer library.

The reference is llama.cpp's src/llama-vocab.cpp. Callers verify the result against
llama.cpp, since a GGUF file does not describe its tokenizer completely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from msgspec import Struct

from .token_pairs import find_token_pairs
from .tokenizer_file import TokenizerError, TokenizerPart, split_merge

_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4
_UNUSED = 5
"""Token types, as in llama.cpp's llama_token_type."""

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# SHORT (contractions) and DIGITS are placeholders, which each pre-tokenizer replaces.
_CASE_AWARE = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+SHORT|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*SHORT|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| "
    r"?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_LLAMA3 = (rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}",)
_QWEN2 = (rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_PUNCTUATION}",)
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| "
    rf"?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
)
_PRE_TOKENIZERS = {
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "mpt", "olmo", "jais", "roberta-bpe"), (_GPT2,)),
    **dict.fromkeys(
        (
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "granite-code",
        ),
        (r"\p{N}", _GPT2),
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "dbrx", "smaug-bpe"),
        _LLAMA3,
    ),
    **dict.fromkeys(("chatglm-bpe", "glm4", "lfm2", "midm-2.0"), _LLAMA3),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "solar-open"), _QWEN2
    ),
    "qwen35": _QWEN35,
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm"),
        (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK),
    ),
    "tekken": (_CASE_AWARE.replace("SHORT", "").replace("DIGITS", r"\p{N}"),),
    **dict.fromkeys(
        ("gpt-4o", "llama4", "minimax-m2"),
        (_CASE_AWARE.replace("SHORT", f"{_CONTRACTIONS}?").replace("DIGITS", r"\p{N}{1,3}"),),
    ),
}
"""Pre-tokenizer regexes by `tokenizer.ggml.pre`."""

_IGNORE_MERGES = frozenset(
    {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"}
)
"""Pre-tokenizers for which a piece that is a token is not merged (`ignore_merges`)."""


class GgufVocabulary(Struct, frozen=True):
    """The values `tokenizer.ggml.*` of a GGUF file.

    kinds: the type of each token, see `_CONTROL`; may be empty.
    scores: the score of each token; may be empty.
    bos, eos, unknown, separator: token ids.
    """

    model: str
    tokens: tuple[str, ...]
    pre: str = "default"
    kinds: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    merges: tuple[str, ...] = ()
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    separator: int | None = None
    add_bos: bool | None = None
    add_eos: bool | None = None
    add_space_prefix: bool = True


def build_tokenizer_parts(vocabulary: GgufVocabulary) -> TokenizerPart:
    """Build the content of a `tokenizer.json`, decoded.

    Raises:
        TokenizerError: the vocabulary's type is unsupported, or its parts do not fit
            together.
    """
    _check_sizes(vocabulary)
    match vocabulary.model:
        case "gpt2":
            parts = _build_byte_level(vocabulary)
        case "llama":
            parts = _build_sentencepiece(vocabulary)
        case "bert":
            parts = _build_wordpiece(vocabulary)
        case model_type:
            raise TokenizerError(f"its vocabulary type is not supported: `{model_type}`")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added_tokens = [
        {"id": id, "content": name, "special": kind == _CONTROL, **flags}
        for id, (name, kind) in _find_special_tokens(vocabulary).items()
    ]
    return {
        "version": "1.0",
        "added_tokens": added_tokens,
        "truncation": None,
        "padding": None,
        **parts,
    }


def _check_sizes(vocabulary: GgufVocabulary) -> None:
    size = len(vocabulary.tokens)
    for name, values in (("token_type", vocabulary.kinds), ("scores", vocabulary.scores)):
        if values and len(values) != size:
            raise TokenizerError(
                f"tokenizer.ggml.{name} has {len(values)} values for {size} tokens"
            )
    for id in (vocabulary.bos, vocabulary.eos, vocabulary.unknown, vocabulary.separator):
        if id is not None and not 0 <= id < size:
            raise TokenizerError(f"its special token {id} is not among its {size} tokens")


def _find_special_tokens(vocabulary: GgufVocabulary) -> dict[int, tuple[str, int]]:
    kinds = enumerate(vocabulary.kinds)
    return {
        id: (vocabulary.tokens[id], kind) for id, kind in kinds if kind in (_CONTROL, _USER_DEFINED)
    }


def _build_byte_level(vocabulary: GgufVocabulary) -> dict[str, Any]:
    splits = _PRE_TOKENIZERS.get(vocabulary.pre)
    if splits is None:
        raise TokenizerError(
            f"its pre-tokenizer is not supported: tokenizer.ggml.pre is `{vocabulary.pre}`"
        )
    split_steps = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in splits
    ]
    # The model's own splits come first, so ByteLevel must not split again with its own
    # regular expression.
    byte_level_step = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    merges = [split_merge(merge) for merge in vocabulary.merges]
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split_steps, byte_level_step]},
        "post_processor": _build_post_processor(
            vocabulary, add_bos=bool(vocabulary.add_bos), add_eos=bool(vocabulary.add_eos)
        ),
        "decoder": byte_level_step,
        "model": _build_bpe(vocabulary, merges, ignore_merges=vocabulary.pre in _IGNORE_MERGES),
    }


def _build_sentencepiece(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Build a SentencePiece tokenizer.

    It prepends a space to every text, even to one that starts with a space or follows a
    control token.
    """
    normalizers: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    ]
    if vocabulary.add_space_prefix:
        normalizers.insert(0, {"type": "Prepend", "prepend": "\u2581"})
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if vocabulary.add_space_prefix:
        # Undoes the space that was prepended to the text.
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = None if vocabulary.unknown is None else vocabulary.tokens[vocabulary.unknown]
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": _build_post_processor(
            vocabulary, add_bos=vocabulary.add_bos is not False, add_eos=bool(vocabulary.add_eos)
        ),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _build_bpe(
            vocabulary,
            _order_merges_by_score(vocabulary),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=unknown,
        ),
    }


def _build_wordpiece(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Build a WordPiece tokenizer. GGUF marks the start of words, whereas BERT's
    vocabulary marks continuations.
    """
    special = _find_special_tokens(vocabulary)
    words: dict[str, int] = {}
    for id, name in enumerate(vocabulary.tokens):
        is_plain = id not in special and not (name.startswith("[") and name.endswith("]"))
        words[(name[1:] if name.startswith("\u2581") else f"##{name}") if is_plain else name] = id
    unknown = vocabulary.tokens[vocabulary.unknown] if vocabulary.unknown is not None else "[UNK]"
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _build_post_processor(
            vocabulary, add_bos=True, add_eos=True, has_separator=True
        ),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "vocab": words,
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 1000,
        },
    }


def _build_bpe(
    vocabulary: GgufVocabulary, merges: Sequence[tuple[str, str]], **options: object
) -> dict[str, Any]:
    words = {name: id for id, name in enumerate(vocabulary.tokens)}
    return {"type": "BPE", "vocab": words, "merges": merges, **options}


class _Merges(Sequence[tuple[str, str]]):
    """Pairs of tokens by id. Half a million tuples would take more time to build, and to
    traverse in each garbage collection, than all else in a vocabulary.
    """

    def __init__(self, tokens: tuple[str, ...], lefts: list[int], rights: list[int]) -> None:
        self._tokens = tokens
        self._lefts = lefts
        self._rights = rights

    def __len__(self) -> int:
        return len(self._lefts)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        get_token = self._tokens.__getitem__
        return zip(map(get_token, self._lefts), map(get_token, self._rights), strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[str, str]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[str, str]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, str] | Sequence[tuple[str, str]]:
        if isinstance(index, slice):
            return _Merges(self._tokens, self._lefts[index], self._rights[index])
        return self._tokens[self._lefts[index]], self._tokens[self._rights[index]]


def _order_merges_by_score(vocabulary: GgufVocabulary) -> Sequence[tuple[str, str]]:
    """Return all possible merges by score, as SentencePiece merges the pair whose token
    has the highest score.

    Of two pairs that form the same token, the one with the likelier parts comes first.
    """
    ids = {
        name: id
        for id, name in enumerate(vocabulary.tokens)
        if name
        and (not vocabulary.kinds or vocabulary.kinds[id] not in (_UNKNOWN, _CONTROL, _UNUSED))
    }
    if not ids:
        return []
    # GGUF has scores instead of merges; the order of all possible merges by score gives
    # the same result. Without scores all are equal, as in llama.cpp.
    pairs = find_token_pairs(tuple(ids))
    id_array = np.fromiter(ids.values(), np.int64, len(ids))
    lefts = id_array[pairs.lefts]
    rights = id_array[pairs.rights]
    scores = np.array(vocabulary.scores or [0.0] * len(vocabulary.tokens))
    order = np.lexsort((rights, lefts, -scores[id_array[pairs.wholes]]))
    return _Merges(vocabulary.tokens, lefts[order].tolist(), rights[order].tolist())


def _build_post_processor(
    vocabulary: GgufVocabulary, *, add_bos: bool, add_eos: bool, has_separator: bool = False
) -> dict[str, Any] | None:
    bos = vocabulary.bos if add_bos else None
    end = (
        vocabulary.separator
        if has_separator and vocabulary.separator is not None
        else vocabulary.eos
    )
    eos = end if add_eos else None
    if bos is None and eos is None:
        return None
    names = {id: vocabulary.tokens[id] for id in (bos, eos) if id is not None}

    def special(id: int | None, segment: int) -> list[dict[str, Any]]:
        return [] if id is None else [{"SpecialToken": {"id": names[id], "type_id": segment}}]

    def text(which: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": which, "type_id": segment}}

    first = [*special(bos, 0), text("A", 0), *special(eos, 0)]
    second = [*([] if has_separator else special(bos, 1)), text("B", 1), *special(eos, 1)]
    tokens = {name: {"id": name, "ids": [id], "tokens": [name]} for id, name in names.items()}
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *second],
        "special_tokens": tokens,
    }
