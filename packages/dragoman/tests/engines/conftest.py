"""Models that tests share: they contain only weights, and no state of a request."""

from __future__ import annotations

import pytest

from dragoman.engines.tiny import find_bundled_model
from dragoman.engines.tiny.llama import Llama, read_model

from .tiny.models import make_model


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    """A random Llama of 96 tokens."""
    return make_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def bundled_model() -> Llama:
    """The model that comes with the package."""
    return read_model(find_bundled_model())
