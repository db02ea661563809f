"""Every architecture of the library is correct or rejected: a few are tested here, all
of them by a command.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")

from .architectures import REFUSED, RIGHT, WRONG, Results, run

pytestmark = pytest.mark.torch

RECORDED = Path(__file__).parents[5] / "docs" / "architectures.json"
AGAIN = "run `python -m tests.engines.transformers.architectures docs/architectures.json`"
SLICE = {
    "cohere2": RIGHT,
    "deepseek_v3": RIGHT,
    "gemma3_text": RIGHT,
    "llama4_text": RIGHT,
    "llava": RIGHT,
    "mimo_v2_flash": RIGHT,
    "phi3, longrope": RIGHT,
    "lfm2": RIGHT,
    "minimax_m3_vl_text": REFUSED,
    "moshi": REFUSED,
    "nemotron": REFUSED,
    "rwkv": REFUSED,
}
"""One of each kind: windows, latent attention, chunks, sinks, longrope, convolutions,
custom masks, state.
"""


def read_recorded() -> dict[str, str]:
    return {
        tried.name: tried.result
        for tried in msgspec.json.decode(RECORDED.read_bytes(), type=Results).tried
    }


def test_recorded_architectures_have_no_wrong_result() -> None:
    results = list(read_recorded().values())
    assert WRONG not in results
    assert results.count(RIGHT) >= 130


@pytest.mark.parametrize("name", SLICE)
def test_architecture_result_matches_record(name: str) -> None:
    (tried,) = run([name])
    assert (tried.result, read_recorded()[name]) == (SLICE[name], SLICE[name]), (
        f"{tried.reason}; {AGAIN}"
    )
