"""Vocabularies of GGUF files."""

from __future__ import annotations

import pytest

from dragoman.prompts.gguf_tokenizer import GgufVocabulary, build_tokenizer_json
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman.prompts.tokenizer_file import TokenizerError

TOKENS = ("a", "b", "ab")


def test_gguf_vocabulary_without_scores_merges_like_equal_scores() -> None:
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
def test_build_tokenizer_json_inconsistent_parts_raises_error(vocabulary: GgufVocabulary) -> None:
    with pytest.raises(TokenizerError):
        build_tokenizer_json(vocabulary)
