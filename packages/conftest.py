"""What the tests of the packages share."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from dragoman import find_bundled_model
from dragoman.prompts.hf_tokenizer import load_tokenizer


@pytest.fixture(scope="session", autouse=True)
def keep_tokenizer() -> Generator[None]:
    """Keep the embedded model's tokenizer in use, so that thousands of models that tests
    build share it.
    """
    tokenizer = load_tokenizer(find_bundled_model())
    yield
    del tokenizer
