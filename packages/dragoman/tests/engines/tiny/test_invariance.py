"""A request batched with 31 others gives the same output as alone, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from dragoman.core.request import Sampling
from dragoman.core.token_engine import ReasoningBudget, TokenRequest
from dragoman.engines.batching import EngineConfig, SchedulerConfig, build_rng
from dragoman.engines.tiny import TinyEngine
from dragoman.engines.tiny.llama import Llama

from ..harness import GREEDY, AllowedTokensMatcher, Outputs, StepperHarness, run_alone, run_client

COUNT = 32
SAMPLINGS = [
    GREEDY,
    Sampling(seed=7),
    Sampling(temperature=1.7, seed=8, top_k=40),
    Sampling(temperature=0.6, seed=9, top_p=0.8, min_p=0.05),
    Sampling(
        temperature=1.2,
        seed=10,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.2,
    ),
    replace(GREEDY, logit_bias=((5, 2.5), (9, -3.0)), bad_words=((11,), (4, 6))),
    Sampling(seed=11, allowed_token_ids=tuple(range(60))),
]


def request(number: int, vocab: int) -> TokenRequest:
    """Every request differs in length and parameters; some share their prefix."""
    rng = np.random.default_rng(number)
    length = int(rng.choice([1, 2, 15, 16, 17, 40, 127, 128, 129, 300]))
    shared = np.random.default_rng(99).integers(0, vocab, length // 2)
    prompt = (*shared.tolist(), *rng.integers(0, vocab, length - length // 2).tolist())
    limit = ReasoningBudget(
        max_tokens=6, begin_ids=(1,), end_ids=(2,), forced_ids=(3, 2), is_open=True
    )
    return TokenRequest(
        id=str(number),
        prompt=prompt,
        max_tokens=int(rng.integers(5, 40)),
        sampling=SAMPLINGS[number % len(SAMPLINGS)],
        min_tokens=number % 3,
        stop_token_ids=frozenset({13, 17}) if number % 2 else frozenset(),
        logprobs=[None, 0, 5][number % 3],
        prompt_logprobs=2 if number % 5 == 0 else None,
        matcher=matcher(number) if number % 8 == 3 else None,
        reasoning_budget=limit if number % 6 == 5 else None,
        priority=number % 2,
    )


def matcher(number: int) -> AllowedTokensMatcher:
    return AllowedTokensMatcher([range(number, number + 50)] * 12)


def requests(vocab: int) -> list[TokenRequest]:
    return [request(number, vocab) for number in range(COUNT)]


@pytest.mark.parametrize(
    "limits",
    [
        SchedulerConfig(),
        SchedulerConfig(max_num_batched_tokens=33, max_num_seqs=32),
        SchedulerConfig(max_num_seqs=5, max_num_batched_tokens=150, max_step_pairs=3000),
        SchedulerConfig(enable_prefix_caching=False),
    ],
    ids=["together", "in small pieces", "five at a time", "without a cache"],
)
def test_mixed_batch_matches_single_requests(small_model: Llama, limits: SchedulerConfig) -> None:
    bench = StepperHarness(small_model, limits, num_kv_tokens=4096)
    streams = [bench.add(one) for one in requests(96)[:20]]
    bench.step(5)
    streams += [bench.add(one) for one in requests(96)[20:]]
    bench.finish()
    for one, ask in zip(streams, requests(96), strict=True):
        assert one.answer == run_alone(small_model, ask).answer, ask.id


def test_cached_requests_match_first_run(small_model: Llama) -> None:
    bench = StepperHarness(small_model, num_kv_tokens=16384)
    rounds: list[list[Outputs]] = []
    for _ in range(2):
        rounds.append([bench.add(one) for one in requests(96)])
        bench.finish()
    assert [outputs.answer for outputs in rounds[0]] == [outputs.answer for outputs in rounds[1]]
    assert (
        sum(outputs.cached[0] for outputs in rounds[1])
        > sum(outputs.cached[0] for outputs in rounds[0])
        > 0
    )


def test_bundled_model_batch_matches_single_requests(bundled_model: Llama) -> None:
    asks = requests(bundled_model.config.vocab)
    bench = StepperHarness(bundled_model, num_kv_tokens=8192)
    streams = [bench.add(one) for one in asks]
    bench.finish()
    for one, ask in list(zip(streams, requests(bundled_model.config.vocab), strict=True))[::5]:
        assert one.answer == run_alone(bundled_model, ask).answer, ask.id


async def test_engine_thread_batch_matches_single_requests(small_model: Llama) -> None:
    config = EngineConfig(
        max_model_len=1024, num_kv_tokens=4096, scheduler=SchedulerConfig(max_num_seqs=COUNT)
    )
    async with run_client(TinyEngine(small_model, config, build_rng)) as client:
        streams = [client.send(one) for one in requests(96)]
        await client.ends(*streams)
    for one, ask in zip(streams, requests(96), strict=True):
        assert one.answer == run_alone(small_model, ask).answer, ask.id


def test_answer_differs_for_other_seed_or_prompt(small_model: Llama) -> None:
    """Another seed, token or prompt changes the output."""
    ask = replace(request(1, 96), logprobs=5, max_tokens=12, stop_token_ids=frozenset())
    expected = run_alone(small_model, ask).answer
    assert run_alone(small_model, replace(ask, sampling=Sampling(seed=70))).answer != expected
    changed = replace(ask, prompt=((ask.prompt[0] + 1) % 96, *ask.prompt[1:]))
    assert run_alone(small_model, changed).answer != expected
