"""The recorded results are those of vLLM's own parsers."""

from __future__ import annotations

import pytest
from tests.engines.vllm.serving import without_accelerator

from .cases import load_cases
from .recorder import RECORDERS

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("kind", RECORDERS)
def test_recorded_results_match_vllm_parsers(kind: str):
    for imported in ("ijson", "mistral_common"):
        pytest.importorskip(imported, reason=f"vLLM's parsers import {imported}")
    with without_accelerator():
        for case in load_cases(kind):
            assert RECORDERS[kind](case) == case
