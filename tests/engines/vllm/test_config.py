"""What is known of vLLM without it: which versions this server works with."""

from __future__ import annotations

import pytest

from dragoman.core.errors import EngineError
from dragoman.engines.vllm.backend import check_version


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0", "0.33.1rc1.dev5+g4ba787ec9", "0.32.0+cpu", "dev"])
def test_a_version_that_was_tested_is_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "0.9.2", "1.0.0"])
def test_another_version_is_refused_in_a_sentence(version: str) -> None:
    with pytest.raises(EngineError) as refused:
        check_version(version)
    assert str(refused.value) == (
        f"vLLM {version} is installed, but this server works with vLLM 0.32 to 0.33: pip install '.[vllm]'"
    )
