"""The simulator's scheduler is vLLM's, step by step.
`benchmarks/scheduler_differential.py` compares millions.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec
import pytest

from .lockstep import MIXES, Difference, Lockstep, VllmParts, draw_case, run_cases
from .serving import without_accelerator

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def vllm() -> Generator[VllmParts]:
    with without_accelerator():
        yield VllmParts()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("mix", MIXES)
def test_simulated_scheduler_steps_match_vllm(
    vllm: VllmParts, mix: str, asynchronous: bool
) -> None:
    """Scheduled tokens, preemptions, both queues in order, free and cached blocks, and
    every block's number.
    """
    compared = run_cases(
        vllm, [draw_case(mix, seed, asynchronous=asynchronous) for seed in range(12)]
    )
    assert compared.steps > 300
    assert compared.scheduled_tokens > compared.steps


def test_random_cases_include_preemptions_and_cache_hits(vllm: VllmParts) -> None:
    compared = run_cases(vllm, [draw_case("any", seed, asynchronous=True) for seed in range(40)])
    assert compared.preemptions > 40
    assert compared.cached_tokens > 1000


@pytest.mark.parametrize(
    ("mix", "setting", "value"),
    [
        ("loras", "max_loras", 5),
        ("threshold", "long_prefill_token_threshold", 0),
        ("watermark", "watermark", 0.0),
        ("priority", "scheduling_policy", "fcfs"),
        ("no_reserve", "scheduler_reserve_full_isl", True),
        ("no_prefix_caching", "enable_prefix_caching", True),
        ("active", "max_num_active_seqs", None),
    ],
)
def test_lockstep_with_different_setting_detects_difference(
    vllm: VllmParts, mix: str, setting: str, value: object
) -> None:
    different = 0
    for seed in range(12):
        case = draw_case(mix, seed, asynchronous=False)
        simulated = msgspec.structs.replace(case.config, **{setting: value})
        try:
            Lockstep(case, vllm, simulated).run()
        except Difference:
            different += 1
    assert different >= 3
