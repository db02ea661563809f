from __future__ import annotations

import pytest
from tests.prompts import vocabularies

from dragoman.constraints.grammar_compiler import Compiler
from dragoman.prompts.hf_tokenizer import HfTokenizer

EOS = "<|im_end|>"


@pytest.fixture(scope="session")
def embedded() -> HfTokenizer:
    """A vocabulary in which every marker is a token."""
    return vocabularies.embedded()


@pytest.fixture(scope="session")
def compiler(embedded: HfTokenizer) -> Compiler:
    return Compiler(embedded, [embedded.special_tokens[EOS]])


@pytest.fixture(scope="session")
def plain() -> HfTokenizer:
    """A vocabulary in which no marker is a token."""
    return vocabularies.build_tokenizer(vocabularies.byte_level_data(("<|im_start|>", EOS)))


@pytest.fixture(scope="session")
def plain_compiler(plain: HfTokenizer) -> Compiler:
    return Compiler(plain, [plain.special_tokens[EOS]])
