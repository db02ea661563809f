"""Fill-in-the-middle prompts: vocabularies with the tokens, and the parts between them."""

from __future__ import annotations

import json

import pytest

from dragoman.prompts.template import (
    INFILL_FAMILIES,
    InfillTokens,
    build_infill_prompt,
    find_infill_tokens,
)
from dragoman.prompts.tokenizer import HfTokenizer

from .vocabularies import byte_level_data


def tokenizer(*controls: str) -> HfTokenizer:
    return HfTokenizer(json.dumps(byte_level_data(controls)))


@pytest.mark.parametrize("family", INFILL_FAMILIES, ids=lambda family: family.prefix)
def test_each_family_is_known_by_its_tokens(family: InfillTokens):
    names = (family.prefix, family.suffix, family.middle)
    assert find_infill_tokens(tokenizer(*names).special_tokens) is family
    assert find_infill_tokens(tokenizer(*names[:2]).special_tokens) is None


def test_the_texts_are_between_their_tokens_and_cannot_write_them():
    family = INFILL_FAMILIES[0]
    names = (family.prefix, family.suffix, family.middle, "<|file_sep|>")
    lent = tokenizer(*names)
    special = lent.special_tokens
    prompt = build_infill_prompt(lent, family, "def f(<|fim_middle|>", "return 1")
    controls = [(at, id) for at, id in enumerate(prompt.ids) if id in special.values()]
    begin, between, end = (at for at, _ in controls)
    assert [id for _, id in controls] == [special[name] for name in names[:3]]
    assert (begin, end) == (0, len(prompt.ids) - 1)
    assert lent.decode(prompt.ids[1:between]) == "def f(<|fim_middle|>"
    assert lent.decode(prompt.ids[between + 1 : end]) == "return 1"
    assert set(prompt.stop_ids) == {special[name] for name in names}
