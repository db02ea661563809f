"""The supported versions of vLLM, and the parameters that vLLM supports."""

from __future__ import annotations

import pytest

from dragoman.core.errors import EngineError
from dragoman.core.request import Extras, GenerationLimits, SamplingOptions
from dragoman.engines.vllm import check_version
from dragoman.engines.vllm.features import VllmFeatures


@pytest.mark.parametrize(
    "version",
    ["0.32.0", "0.33.0", "0.33.1rc1.dev5+g4ba787ec9", "0.32.0+cpu", "0.1.dev1+g1234", "dev"],
)
def test_check_version_accepts_tested_version(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "0.9.2", "1.0.0"])
def test_check_version_untested_raises_with_hint(version: str) -> None:
    with pytest.raises(EngineError) as rejected:
        check_version(version)
    assert str(rejected.value) == (
        f"vLLM {version} is installed, but this server works with vLLM 0.32 to 0.33: "
        "pip install 'dragoman[vllm]'"
    )


def test_capabilities_parameters_match_request_fields() -> None:
    features = VllmFeatures(
        max_model_len=100, vocab_size=100, max_logprobs=5, has_lora=True, has_kv_transfer=True
    )
    known = {
        name
        for struct in (SamplingOptions, GenerationLimits, Extras)
        for name in struct.__struct_fields__
        if name
        not in ("close_at_limit", "reply", "fault", "cache_hit_threshold", "cache_threshold_finish")
    }
    assert features.build_capabilities().parameters == known
