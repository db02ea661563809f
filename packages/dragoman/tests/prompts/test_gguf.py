"""Vocabularies of GGUF files."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.prompts.gguf_tokenizer import GgufVocabulary, build_tokenizer_parts
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman.prompts.tokenizer_file import TokenizerError

TOKENS = ("a", "b", "ab")


def test_gguf_vocabulary_without_scores_merges_like_equal_scores() -> None:
    equal = GgufVocabulary("llama", TOKENS, scores=(0.0,) * 3, add_space_prefix=False)
    missing = GgufVocabulary("llama", TOKENS, add_space_prefix=False)
    merges = [
        list(build_tokenizer_parts(vocabulary)["model"]["merges"])
        for vocabulary in (missing, equal)
    ]
    assert merges == [[("a", "b")]] * 2
    assert HfTokenizer(build_tokenizer_parts(missing), generates=False).encode(
        "abb", special=False
    ) == [2, 1]


@pytest.mark.parametrize(
    "vocabulary",
    [
        GgufVocabulary("llama", TOKENS, kinds=(1,), scores=(0.0,) * 3),
        GgufVocabulary("llama", TOKENS, scores=(0.0,)),
        GgufVocabulary("gpt2", TOKENS, pre="gpt-2", kinds=(1, 1, 1, 3)),
        GgufVocabulary("gpt2", TOKENS, pre="gpt-2", bos=7, add_bos=True),
        GgufVocabulary("llama", TOKENS, unknown=-1),
    ],
)
def test_build_tokenizer_parts_inconsistent_parts_raises_error(vocabulary: GgufVocabulary) -> None:
    with pytest.raises(TokenizerError):
        build_tokenizer_parts(vocabulary)


@given(
    st.lists(st.text("abc", max_size=5), unique=True, min_size=1, max_size=30),
    st.lists(st.sampled_from((-1.0, -2.0, -3.5)), min_size=30, max_size=30),
)
def test_sentencepiece_merges_are_all_pairs_ordered_by_score(
    tokens: list[str], scores: list[float]
) -> None:
    vocabulary = GgufVocabulary("llama", tuple(tokens), scores=tuple(scores[: len(tokens)]))
    ids = {name: id for id, name in enumerate(tokens)}
    pairs = [
        (-scores[ids[left + right]], ids[left], ids[right])
        for left, right in product(filter(None, tokens), repeat=2)
        if left + right in ids
    ]
    expected = [(tokens[left], tokens[right]) for _, left, right in sorted(pairs)]
    assert list(build_tokenizer_parts(vocabulary)["model"]["merges"]) == expected


def build_vocabulary_with_controls(spelled: tuple[str, ...] = ()) -> GgufVocabulary:
    """Build a vocabulary with the control token `<c>`.

    spelled: further tokens.
    """
    tokens = ("<unk>", "<c>", "ab", "a", "b", "c", "<", ">", "\u2581", *spelled)
    kinds = (2, 3, *[1] * (len(tokens) - 2))
    return GgufVocabulary("llama", tokens, kinds=kinds, unknown=0, add_space_prefix=False)


@pytest.mark.parametrize("spelled", [(), ("<c", "c>")])
def test_gguf_text_never_encodes_to_control_token(spelled: tuple[str, ...]) -> None:
    tokenizer = HfTokenizer(build_tokenizer_parts(build_vocabulary_with_controls(spelled)))
    assert tokenizer.encode("a<c>b", special=True) == [3, 1, 4]
    plain = tokenizer.encode("a<c>b", special=False)
    assert 1 not in plain
    assert b"".join(map(tokenizer.token_bytes, plain)) == b"a<c>b"
    assert tokenizer.encode("cab", special=False) == [5, 2]
    assert tokenizer.encode_broken("a<c>b", "\0") == [3, 1, 4]
    assert 1 not in tokenizer.encode_broken("a<\0c>b", "\0")


def test_tokenizer_from_parts_equals_tokenizer_from_json() -> None:
    parts = build_tokenizer_parts(build_vocabulary_with_controls(("<c",)))
    built = HfTokenizer(parts)
    parsed = HfTokenizer(msgspec.json.encode(parts, enc_hook=list))
    for text in ("a<c>b ab", "\u00e9 <c", ""):
        assert built.encode(text, special=True) == parsed.encode(text, special=True)
        assert built.encode(text, special=False) == parsed.encode(text, special=False)
    assert built.special_tokens == parsed.special_tokens
