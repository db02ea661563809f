"""The engine step by step, without a thread: outputs and ends of sequences; a broken
one does not affect others.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dragoman.core.events import FinishReason
from dragoman.core.request import Sampling
from dragoman.core.token_engine import (
    Ended,
    Failed,
    ReasoningBudget,
    Sampled,
    Scheduled,
    TokenRequest,
)
from dragoman.engines.batching import SchedulerConfig
from dragoman.engines.tiny.llama import Llama

from ..harness import GREEDY, AllowedTokensMatcher, StepperHarness, run_alone
from ..tiny.models import Shape, make_model

RNG = np.random.default_rng(11)
PROMPT = tuple(RNG.integers(0, 96, 40).tolist())
ASK = TokenRequest(id="a", prompt=PROMPT, max_tokens=8, sampling=GREEDY)
LENGTH = FinishReason.LENGTH
STOP = FinishReason.STOP


def test_sequence_outputs_are_emitted_in_order(small_model: Llama) -> None:
    outputs = run_alone(small_model, replace(ASK, prompt_logprobs=0, max_tokens=2))
    assert [type(output).__name__ for output in outputs] == [
        "Scheduled",
        "PromptLogprobs",
        "WeightVersionSet",
        "Sampled",
        "Sampled",
        "Ended",
    ]
    assert {output.id for output in outputs} == {"a"}


def test_sequence_ends_at_max_tokens_or_context_limit(small_model: Llama) -> None:
    outputs = run_alone(small_model, ASK)
    assert (len(outputs.tokens), outputs.end) == (8, Ended("a", LENGTH))
    bench = StepperHarness(small_model, max_model_len=43)
    outputs = bench.add(ASK)
    bench.finish()
    assert (len(outputs.tokens), outputs.end) == (3, Ended("a", LENGTH))


def test_pool_of_max_model_len_fits_longest_sequence(small_model: Llama) -> None:
    bench = StepperHarness(small_model, num_kv_tokens=101, max_model_len=101)
    outputs = bench.add(replace(ASK, prompt=(1,) * 100))
    bench.step()
    assert (len(outputs.tokens), outputs.end) == (1, Ended("a", LENGTH))


def test_stop_token_is_emitted_and_ends_sequence(small_model: Llama) -> None:
    tokens = run_alone(small_model, ASK).tokens
    stop = tokens[3]
    outputs = run_alone(small_model, replace(ASK, stop_token_ids=frozenset({stop, 9999})))
    assert outputs.tokens == tokens[: tokens.index(stop) + 1]
    assert outputs.end == Ended("a", STOP, stop=stop)


def test_stop_token_is_allowed_right_after_min_tokens(small_model: Llama) -> None:
    stops = frozenset(range(96))
    for least in (0, 1, 3):
        sampling = Sampling(seed=1, logit_bias=tuple((id, -100.0) for id in range(50)))
        outputs = run_alone(
            small_model,
            replace(ASK, stop_token_ids=stops - {7}, min_tokens=least, sampling=sampling),
        )
        assert (len(outputs.tokens), set(outputs.tokens[:least])) == (
            least + 1,
            {7} if least else set(),
        )


def test_min_tokens_delays_stop_tokens(small_model: Llama) -> None:
    stops = frozenset(range(0, 96, 2))
    assert run_alone(
        small_model, replace(ASK, stop_token_ids=stops, sampling=Sampling(seed=1))
    ).end != Ended("a", LENGTH)
    for seed in range(5):
        outputs = run_alone(
            small_model,
            replace(ASK, stop_token_ids=stops, min_tokens=5, sampling=Sampling(seed=seed)),
        )
        assert len(outputs.tokens) > 5
        assert not stops.intersection(outputs.tokens[:5])


def test_sampling_seed_is_reproducible_and_no_seed_is_random(small_model: Llama) -> None:
    ask = replace(ASK, sampling=Sampling(temperature=2.0, seed=4), max_tokens=20)
    assert run_alone(small_model, ask).tokens == run_alone(small_model, ask).tokens
    assert (
        run_alone(small_model, ask).tokens
        != run_alone(small_model, replace(ask, sampling=Sampling(temperature=2.0, seed=-4))).tokens
    )
    free = replace(ask, sampling=Sampling(temperature=2.0))
    assert run_alone(small_model, free).tokens != run_alone(small_model, free).tokens


def test_matcher_constrains_tokens_until_its_end(small_model: Llama) -> None:
    outputs = run_alone(
        small_model, replace(ASK, matcher=AllowedTokensMatcher([{3, 4}, {5}, {6, 7}]))
    )
    assert outputs.tokens[0] in {3, 4}
    assert outputs.tokens[1] == 5
    assert outputs.tokens[2] in {6, 7}
    assert outputs.end == Ended("a", STOP)


def test_empty_token_mask_ends_sequence(small_model: Llama) -> None:
    ask = replace(
        ASK,
        matcher=AllowedTokensMatcher([{3}, {4}]),
        sampling=replace(GREEDY, allowed_token_ids=(3, 5)),
        logprobs=1,
    )
    outputs = run_alone(small_model, ask)
    assert (outputs.tokens, outputs.end) == ([3], Ended("a", STOP))


def test_failing_matcher_fails_only_its_request(small_model: Llama) -> None:
    bench = StepperHarness(small_model)
    other = bench.add(replace(ASK, id="other"))
    failing = bench.add(replace(ASK, matcher=AllowedTokensMatcher([{3}, {4}, {5}], fail_at=1)))
    bench.finish()
    assert other.tokens == run_alone(small_model, ASK).tokens
    assert failing.tokens == [3]
    assert failing.end == Failed("a", "The grammar of this request failed.")


def test_matcher_rejecting_allowed_token_fails_its_request(small_model: Llama) -> None:
    class Fickle(AllowedTokensMatcher):
        def replace(self, token: int) -> int:
            return token

        def advance(self, token: int) -> bool:
            return False

    outputs = run_alone(small_model, replace(ASK, matcher=Fickle([{3}, {4}])))
    assert outputs.end == Failed("a", "The grammar of this request failed.")


def test_logprobs_contain_sampled_token_and_sorted_top(small_model: Llama) -> None:
    outputs = run_alone(
        small_model, replace(ASK, logprobs=96, sampling=Sampling(temperature=3.0, seed=1))
    )
    for token, score in zip(outputs.tokens, outputs.scores, strict=True):
        assert score is not None
        assert score.rank is not None
        assert list(score.top) == sorted(score.top, key=lambda entry: (-entry[1], entry[0]))
        assert dict(score.top)[token] == score.logprob
        assert score.top[score.rank - 1][1] == score.logprob
        assert np.isclose(sum(np.exp(logprob) for _, logprob in score.top), 1.0)
    assert run_alone(small_model, ASK).scores == [None] * 8
    bare = run_alone(small_model, replace(ASK, logprobs=0)).scores
    assert all(score and score.top == () and score.rank == 1 for score in bare)


def test_logprobs_ignore_bias_penalties_and_temperature(small_model: Llama) -> None:
    forced = replace(GREEDY, logit_bias=((9, 90.0),), repetition_penalty=1.9, temperature=0.0)
    plain = run_alone(small_model, replace(ASK, logprobs=3))
    changed = run_alone(small_model, replace(ASK, logprobs=3, sampling=forced))
    assert plain.scores[0] is not None
    assert changed.scores[0] is not None
    assert changed.tokens[0] == 9
    assert changed.scores[0].top == plain.scores[0].top


@pytest.mark.parametrize("budget", [64, 7])
def test_prompt_logprobs_equal_logprobs_of_sampled_tokens(small_model: Llama, budget: int) -> None:
    sampled = run_alone(
        small_model, replace(ASK, max_tokens=150, logprobs=4, sampling=Sampling(seed=2))
    )
    prompt = (*PROMPT, *sampled.tokens)
    ask = TokenRequest(id="b", prompt=prompt, max_tokens=1, prompt_logprobs=4)
    outputs = run_alone(small_model, ask, SchedulerConfig(max_num_batched_tokens=budget))
    scores = outputs.prompt[0].logprobs
    assert len(scores) == len(prompt)
    assert scores[0] is None
    assert list(scores[40:]) == sampled.scores


def test_prompt_logprobs_of_single_token_prompt_are_none(small_model: Llama) -> None:
    outputs = run_alone(
        small_model, TokenRequest(id="b", prompt=(5,), max_tokens=1, prompt_logprobs=2)
    )
    assert outputs.prompt[0].logprobs == (None,)


def test_prompt_logprobs_bypass_prefix_cache(small_model: Llama) -> None:
    bench = StepperHarness(small_model)
    first = bench.add(ASK)
    plain = replace(ASK, id="b")
    bench.finish()
    scored = bench.add(replace(plain, prompt_logprobs=1))
    cached = bench.add(replace(plain, id="c"))
    bench.finish()
    assert (first.cached, scored.cached, cached.cached) == ([0], [0], [32])
    assert scored.tokens == cached.tokens == first.tokens


def test_prefix_cache_covers_previous_turn(small_model: Llama) -> None:
    bench = StepperHarness(small_model)
    first = bench.add(replace(ASK, max_tokens=30))
    bench.finish()
    second = bench.add(TokenRequest(id="b", prompt=(*PROMPT, *first.tokens, 1, 2), max_tokens=1))
    bench.finish()
    assert second.cached == [64]


def test_preemption_keeps_tokens_unchanged(small_model: Llama) -> None:
    asks = [
        replace(
            ASK,
            id=str(key),
            prompt=tuple(RNG.integers(0, 96, 50).tolist()),
            max_tokens=60,
            prompt_logprobs=1,
        )
        for key in range(4)
    ]
    bench = StepperHarness(
        small_model,
        SchedulerConfig(max_num_batched_tokens=20),
        num_kv_tokens=240,
        max_model_len=240,
    )
    streams = [bench.add(ask) for ask in asks]
    bench.finish()
    assert bench.stepper.scheduler.num_preemptions > 0
    for one, ask in zip(streams, asks, strict=True):
        assert one.answer == run_alone(small_model, ask).answer
        assert len(one.cached) == 1


LIMIT = ReasoningBudget(
    max_tokens=5, begin_ids=(90,), end_ids=(91,), forced_ids=(92, 91), is_open=True
)


def test_reasoning_budget_exhausted_forces_end_tokens(small_model: Llama) -> None:
    sampling = replace(GREEDY, logit_bias=((91, -100.0), (92, -100.0)))
    outputs = run_alone(
        small_model, replace(ASK, sampling=sampling, reasoning_budget=LIMIT, logprobs=2)
    )
    assert outputs.tokens[5:7] == [92, 91]
    assert not {91, 92}.intersection(outputs.tokens[:5])
    assert outputs.scores[5] is not None
    assert (outputs.scores[5].rank or 0) > 1


def test_reasoning_end_rejected_by_grammar_is_not_forced(small_model: Llama) -> None:
    free = [set(range(80))] * 6
    outputs = run_alone(
        small_model,
        replace(
            ASK, reasoning_budget=LIMIT, matcher=AllowedTokensMatcher([*free, {92}, {91}, {3}])
        ),
    )
    assert outputs.tokens[5] < 80
    assert outputs.tokens[6:] == [92, 91]
    assert outputs.end == Ended("a", LENGTH)


def test_forced_stop_token_before_min_tokens_does_not_end(small_model: Llama) -> None:
    ask = replace(
        ASK, reasoning_budget=replace(LIMIT, max_tokens=0), stop_token_ids=frozenset({91})
    )
    assert run_alone(small_model, ask).tokens == [92, 91]
    longer = run_alone(small_model, replace(ask, min_tokens=2)).tokens
    assert longer[:2] == [92, 91]
    assert len(longer) > 2


def test_matcher_panic_fails_only_its_request(small_model: Llama) -> None:
    """A panic in a Rust library is not an Exception."""

    class Exploding(AllowedTokensMatcher):
        def mask(self) -> bytes:
            raise KeyboardInterrupt

    bench = StepperHarness(small_model, SchedulerConfig(max_num_seqs=2))
    running = bench.add(replace(ASK, id="x"))
    failing = bench.add(replace(ASK, id="y", matcher=Exploding([{1}])))
    waiting = bench.add(ASK)
    bench.finish()
    assert failing.end == Failed("y", "The grammar of this request failed.")
    assert running.tokens == waiting.tokens == run_alone(small_model, ASK).tokens


def test_nan_logits_fail_sequence(tmp_path: Path) -> None:
    outputs = run_alone(make_model(tmp_path, norm=math.nan), replace(ASK, logprobs=2))
    assert outputs.tokens == []
    assert outputs.end == Failed("a", "The model returned invalid probabilities.")


def test_nan_prompt_does_not_affect_other_sequences(tmp_path: Path) -> None:
    """One token's embedding is NaN. Neither concurrent sequences nor later owners of
    its blocks are affected.
    """
    model = make_model(tmp_path, Shape(tied=False), broken_token=95)
    ask = replace(ASK, sampling=replace(GREEDY, allowed_token_ids=tuple(range(95))))
    asks = [
        replace(ask, id=str(key), prompt=tuple(RNG.integers(0, 95, 30).tolist()))
        for key in range(4)
    ]
    bench = StepperHarness(model, num_kv_tokens=128, max_model_len=64)
    poisoned = [bench.add(replace(ASK, prompt=(*PROMPT[:20], 95, *PROMPT[:20]))) for _ in range(2)]
    streams = [bench.add(ask) for ask in asks]
    bench.finish()
    assert [type(one.end) for one in poisoned] == [Failed, Failed]
    assert [one.answer for one in streams] == [run_alone(model, ask).answer for ask in asks]
    assert all(len(one.tokens) == 8 for one in streams)


def test_short_sequences_decode_during_long_prefill(tmp_path: Path) -> None:
    shape = Shape(
        layers=1, hidden=16, heads=1, kv_heads=1, head_dim=8, intermediate=16, max_positions=32768
    )
    model = make_model(tmp_path, shape)
    bench = StepperHarness(model, SchedulerConfig(max_step_pairs=1 << 20), num_kv_tokens=65536)
    long = TokenRequest(
        id="long", prompt=tuple(RNG.integers(0, 96, 15_000).tolist()), max_tokens=3, sampling=GREEDY
    )
    short = [bench.add(replace(ASK, id=str(key), max_tokens=1000)) for key in range(2)]
    bench.step()
    outputs = bench.add(long)
    steps = 1
    while not outputs.tokens:
        bench.step()
        steps += 1
        assert [len(one.tokens) for one in short] == [steps, steps], "a sequence made no progress"
    assert steps > 100
    bench.step(2)
    assert outputs.end == Ended("long", LENGTH)
    assert isinstance(outputs[0], Scheduled)
    assert isinstance(outputs[2], Sampled)
