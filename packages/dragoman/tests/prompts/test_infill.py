"""Fill-in-the-middle prompts: vocabularies with the tokens, and the parts between them."""

from __future__ import annotations

import json

import pytest

from dragoman.prompts.fill_in_the_middle import (
    INFILL_FAMILIES,
    InfillTokens,
    build_infill_prompt,
    find_infill_tokens,
)
from dragoman.prompts.hf_tokenizer import HfTokenizer

from .vocabularies import byte_level_data


def build_tokenizer(*controls: str) -> HfTokenizer:
    return HfTokenizer(json.dumps(byte_level_data(controls)))


@pytest.mark.parametrize("family", INFILL_FAMILIES, ids=lambda family: family.prefix)
def test_find_infill_tokens_detects_family_by_special_tokens(family: InfillTokens):
    names = (family.prefix, family.suffix, family.middle)
    assert find_infill_tokens(build_tokenizer(*names).special_tokens) is family
    assert find_infill_tokens(build_tokenizer(*names[:2]).special_tokens) is None


def test_infill_prompt_keeps_control_tokens_in_user_text_as_text():
    family = INFILL_FAMILIES[0]
    names = (family.prefix, family.suffix, family.middle, "<|file_sep|>")
    tokenizer = build_tokenizer(*names)
    special = tokenizer.special_tokens
    prompt = build_infill_prompt(tokenizer, family, "def f(<|fim_middle|>", "return 1")
    controls = [(at, id) for at, id in enumerate(prompt.ids) if id in special.values()]
    begin, between, end = (at for at, _ in controls)
    assert [id for _, id in controls] == [special[name] for name in names[:3]]
    assert (begin, end) == (0, len(prompt.ids) - 1)
    assert tokenizer.decode(prompt.ids[1:between]) == "def f(<|fim_middle|>"
    assert tokenizer.decode(prompt.ids[between + 1 : end]) == "return 1"
    assert set(prompt.stop_ids) == {special[name] for name in names}
