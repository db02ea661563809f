"""Vocabularies of GGUF files."""

from __future__ import annotations

import pytest

from dragoman.prompts.gguf import GgufVocabulary, build_tokenizer_json
from dragoman.prompts.tokenizer import HfTokenizer, TokenizerError

TOKENS = ("a", "b", "ab")


def test_a_vocabulary_without_scores_merges_as_with_equal_ones() -> None:
    equal = GgufVocabulary("llama", TOKENS, scores=(0.0,) * 3, add_space_prefix=False)
    missing = GgufVocabulary("llama", TOKENS, add_space_prefix=False)
    assert build_tokenizer_json(missing) == build_tokenizer_json(equal)
    assert HfTokenizer(build_tokenizer_json(missing), generates=False).encode(
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
def test_parts_that_do_not_fit_together_are_an_error_of_ours(vocabulary: GgufVocabulary) -> None:
    with pytest.raises(TokenizerError):
        build_tokenizer_json(vocabulary)
