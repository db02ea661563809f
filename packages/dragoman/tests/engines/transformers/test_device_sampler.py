"""The torch sampler equals numpy's sampler on any batch."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")

from dragoman.core.errors import EngineError
from dragoman.core.request import Sampling
from dragoman.core.token_engine import TokenLogprob, TokenRequest
from dragoman.engines import tiny, transformers
from dragoman.engines.batching import NumpySampledRows, SamplingState, SchedulerConfig
from dragoman.engines.batching.sampler import NO_TOKEN
from dragoman.engines.transformers.backend import torch
from dragoman.engines.transformers.device_sampler import MAX_ALTERNATIVES, DeviceSampledRows
from dragoman.engines.transformers.device_sampler_check import (
    can_sample_on_device,
    check_device_sampler,
)
from dragoman.engines.transformers.load import build_paged_model
from dragoman.engines.transformers.load_network import load_network
from dragoman.engines.transformers.transformers_model import TransformersModel

from ..batching.test_sampler import LOGITS, OUTPUTS, PROMPT, SAMPLINGS, TIED, VOCAB
from ..harness import GREEDY, AllowedTokensMatcher, Outputs, StepperHarness

pytestmark = pytest.mark.torch

Floats = NDArray[np.float32]
Masks = list[bytes | None]
MASKS = st.one_of(st.none(), st.binary(max_size=5))
GREEDY_OR_NOT = st.one_of(
    SAMPLINGS, SAMPLINGS.map(lambda sampling: replace(sampling, temperature=0.0))
)
NEAR_BOUNDARY = 1e-6
"""Share of all weights by which float32 rounding may move the limit between two tokens.
"""


@st.composite
def requests(draw: st.DrawFn) -> tuple[TokenRequest, tuple[int, ...]]:
    """A request, and the tokens that it has sampled so far."""
    ids = draw(st.sampled_from([(), (4,), (7, 0, VOCAB - 1)]))
    request = TokenRequest(
        id="a",
        prompt=PROMPT,
        max_tokens=9,
        sampling=replace(draw(GREEDY_OR_NOT), seed=draw(st.integers(0, 9))),
        min_tokens=draw(st.sampled_from([0, 9])),
        stop_token_ids=draw(st.sampled_from([frozenset[int](), frozenset({5, VOCAB - 1, 999})])),
        logprobs=draw(st.sampled_from([None, 0, 3, VOCAB, VOCAB + 5])),
        logprob_ids=ids,
    )
    return request, draw(OUTPUTS)


def build_rng(seed: int | None) -> Callable[[], float]:
    return random.Random(seed).random


def build_constant_rng(uniform: float) -> Callable[[int | None], Callable[[], float]]:
    return lambda seed: lambda: uniform


def state(
    request: TokenRequest,
    output: tuple[int, ...] = (),
    vocab: int = VOCAB,
    rng: Callable[[int | None], Callable[[], float]] = build_rng,
) -> SamplingState:
    created = SamplingState(request, vocab, rng)
    for token in output:
        created.observe(token)
    return created


def ask(sampling: Sampling, **more: object) -> TokenRequest:
    return replace(TokenRequest(id="a", prompt=PROMPT, max_tokens=9, sampling=sampling), **more)


def on_device(
    logits: Floats, states: list[SamplingState], masks: Masks | None = None
) -> DeviceSampledRows:
    return DeviceSampledRows(torch.from_numpy(logits.copy()), states, masks or [None] * len(states))


def scores_agree(found: list[TokenLogprob | None], expected: list[TokenLogprob | None]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.rank == other.rank
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert [id for id, _ in one.top] == [id for id, _ in other.top]
            assert [value for _, value in one.top] == pytest.approx(
                [value for _, value in other.top], abs=1e-5
            )


def sample_by_hand(
    logits: Floats, request: TokenRequest, output: tuple[int, ...], mask: bytes | None, steps: int
) -> tuple[list[int], list[int]]:
    """Return each sampler's tokens for evenly spaced uniform numbers."""
    chances = [(step + 0.5) / steps for step in range(steps)]
    rows = np.tile(logits, (steps, 1))
    states = [
        [state(request, output, len(logits), build_constant_rng(uniform)) for uniform in chances]
        for _ in range(2)
    ]
    masks: Masks = [mask] * steps
    return on_device(rows, states[0], masks).tokens, NumpySampledRows(rows, states[1], masks).tokens


@given(st.lists(st.tuples(st.one_of(LOGITS, TIED), requests(), MASKS), min_size=1, max_size=6))
def test_device_sampler_matches_numpy_for_mixed_rows(
    rows: list[tuple[list[float], tuple[TokenRequest, tuple[int, ...]], bytes | None]],
) -> None:
    """Logits are multiples of 1/16, and the seeds' random numbers are not near a
    boundary of the resulting weights.
    """
    logits = np.array([row for row, _, _ in rows], np.float32)
    masks = [mask for _, _, mask in rows]
    before = logits.copy()
    found = on_device(logits, [state(*request) for _, request, _ in rows], masks)
    expected = NumpySampledRows(logits, [state(*request) for _, request, _ in rows], masks)
    assert found.tokens == expected.tokens
    scores_agree(found.compute_logprobs(found.tokens), expected.compute_logprobs(expected.tokens))
    assert np.array_equal(logits, before)


@given(st.one_of(LOGITS, TIED), requests(), MASKS)
@settings(max_examples=50)
def test_device_sampler_token_probabilities_match_numpy(
    logits: list[float], row: tuple[TokenRequest, tuple[int, ...]], mask: bytes | None
) -> None:
    found, expected = sample_by_hand(np.array(logits, np.float32), *row, mask, 200)
    assert set(found) == set(expected)
    assert np.abs(np.array(found) - np.array(expected)).astype(bool).sum() <= 1


@pytest.mark.parametrize("vocab", [1, 7, 8, 1003, 50_257])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.6, top_k=20, top_p=0.95),
        Sampling(temperature=1.3, top_p=0.9),
        Sampling(temperature=1.0, top_k=3000, top_p=0.8),
        Sampling(
            temperature=1.1,
            min_p=0.02,
            repetition_penalty=1.2,
            frequency_penalty=0.1,
            presence_penalty=0.4,
        ),
    ],
)
def test_device_sampler_differs_only_at_rounding_boundaries(vocab: int, sampling: Sampling) -> None:
    rng = np.random.default_rng(vocab)
    logits = (rng.normal(size=(40, vocab)) * 3).astype(np.float32)
    # Many equal logits, as of a model in bfloat16.
    logits[::2] = np.round(logits[::2] * 4) / 4
    request = ask(sampling, prompt=tuple(range(min(vocab, 3))), logprobs=2)

    def states(*, shift: float = 0.0) -> list[SamplingState]:
        def build(row: int) -> SamplingState:
            uniform = min(max(random.Random(row).random() + shift, 0.0), 1 - 2**-53)
            return state(request, (0,), vocab, build_constant_rng(uniform))

        return [build(row) for row in range(len(logits))]

    found = on_device(logits, states())
    expected = NumpySampledRows(logits, states(), [None] * 40)
    # Between the tokens of a slightly smaller and a slightly greater number.
    lower, upper = (
        NumpySampledRows(logits, states(shift=shift), [None] * 40).tokens
        for shift in (-NEAR_BOUNDARY, NEAR_BOUNDARY)
    )
    assert all(
        low <= token <= high for low, token, high in zip(lower, found.tokens, upper, strict=True)
    )
    assert sum(one != other for one, other in zip(found.tokens, expected.tokens, strict=True)) <= 1
    scores_agree(
        found.compute_logprobs(expected.tokens), expected.compute_logprobs(expected.tokens)
    )


@pytest.mark.parametrize("vocab", [24, 1003, 50_257])
def test_device_sampler_row_is_bit_identical_in_any_batch(vocab: int) -> None:
    """Logprobs expose every bit of the sums of weights."""
    rng = np.random.default_rng(1)
    logits = (rng.normal(size=(9, vocab)) * 4).astype(np.float32)
    samplings = [
        Sampling(seed=1),
        Sampling(seed=2, top_p=0.8),
        Sampling(seed=3, top_k=9),
        GREEDY,
    ] * 3

    def states() -> list[SamplingState]:
        return [state(ask(one, logprobs=3), (), vocab) for one in samplings[: len(logits)]]

    together = on_device(logits, states())
    scores = together.compute_logprobs(together.tokens)
    order = rng.permutation(len(logits)).tolist()
    shuffled = on_device(logits[order], [states()[row] for row in order])
    assert shuffled.tokens == [together.tokens[row] for row in order]
    assert shuffled.compute_logprobs(shuffled.tokens) == [scores[row] for row in order]
    for row, one in enumerate(states()):
        alone = on_device(logits[row : row + 1], [one])
        assert alone.tokens == together.tokens[row : row + 1]
        assert alone.compute_logprobs(alone.tokens) == scores[row : row + 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_device_sampler_detects_rows_without_possible_token(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=1, top_p=0.9, repetition_penalty=1.5)
    rows = np.zeros((7, VOCAB), np.float32)
    rows[0] = math.nan
    rows[1, 3] = math.nan
    rows[2] = -math.inf
    rows[3, 4] = math.inf
    rows[5, 1::2] = -math.inf
    rows[6, 2] = 2e38
    masks: Masks = [None, None, None, None, b"", None, None]
    for ids in ((), (1, 3)):
        requests = [ask(sampling, logprobs=2, logprob_ids=ids) for _ in rows]
        found = on_device(rows, [state(one) for one in requests], masks)
        expected = NumpySampledRows(rows, [state(one) for one in requests], masks)
        assert found.tokens == expected.tokens
        assert found.tokens[:5] == [NO_TOKEN] * 5
        assert NO_TOKEN not in found.tokens[5:]
        assert [found.is_finite(row) for row in range(7)] == [False] * 4 + [True, False, True]
        scores_agree(
            found.compute_logprobs(found.tokens)[5:], expected.compute_logprobs(expected.tokens)[5:]
        )
        assert found.compute_logprobs(found.tokens)[:5] == [None] * 5


def test_device_sampler_greedy_tie_bfloat16_takes_lowest_id() -> None:
    logits = torch.zeros(3, 1003, dtype=torch.bfloat16)
    logits[0, [700, 9, 55]] = 2.0
    logits[1, [1002, 1001]] = 1.0
    rows = DeviceSampledRows(logits, [state(ask(GREEDY), (), 1003) for _ in range(3)], [None] * 3)
    assert rows.tokens == [9, 1001, 0]


def test_device_sampler_handles_infinite_and_repeated_biases() -> None:
    rows = np.tile(np.linspace(-1, 1, VOCAB, dtype=np.float32), (3, 1))
    biases = [
        ((4, math.inf), (5, 1e300), (6, -math.inf)),
        ((3, 5.0), (4, -100.0), (3, 0.5)),
        ((7, 3.0),),
    ]
    for temperature in (0.0, 1.0):
        asks = [
            ask(Sampling(temperature=temperature, seed=3, logit_bias=bias), logprobs=1)
            for bias in biases
        ]
        found = on_device(rows, [state(one) for one in asks])
        expected = NumpySampledRows(rows, [state(one) for one in asks], [None] * 3)
        assert found.tokens == expected.tokens
        scores_agree(
            found.compute_logprobs(found.tokens), expected.compute_logprobs(expected.tokens)
        )


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(top_p=0.999), Sampling(top_p=1e-18), Sampling(top_k=2)]
)
def test_device_sampler_extreme_random_values_hit_allowed_tokens(
    uniform: float, sampling: Sampling
) -> None:
    mask = sum(1 << id for id in (3, 4, 20)).to_bytes(3, "little")
    logits = np.random.default_rng(0).standard_normal((1, VOCAB), np.float32)
    (found,) = on_device(
        logits, [state(ask(sampling), rng=build_constant_rng(uniform))], [mask]
    ).tokens
    assert [found] == NumpySampledRows(
        logits, [state(ask(sampling), rng=build_constant_rng(uniform))], [mask]
    ).tokens
    assert found in (3, 4, 20)


@pytest.mark.parametrize("ids", [(), (2, 70)])
def test_compute_logprobs_for_replaced_tokens_matches_numpy(
    ids: tuple[int, ...],
) -> None:
    vocab = 400
    logits = np.random.default_rng(2).standard_normal((2, vocab), np.float32)
    asks = [ask(GREEDY, logprobs=count, logprob_ids=ids) for count in (2, MAX_ALTERNATIVES + 1)]
    found = on_device(logits, [state(one, (), vocab) for one in asks])
    expected = NumpySampledRows(logits, [state(one, (), vocab) for one in asks], [None] * 2)
    for tokens in (expected.tokens, [5, 6], [5, NO_TOKEN]):
        scores_agree(found.compute_logprobs(tokens), expected.compute_logprobs(tokens))


def test_check_device_sampler_mismatch_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("cpu")
    check_device_sampler(device)
    sort = torch.Tensor.sort

    def sort_ties_by_falling_ids(values: Any, *, dim: int, **given: Any) -> Any:
        ranked, ids = sort(values.flip(dim), dim=dim, **given)
        return ranked, values.shape[dim] - 1 - ids

    monkeypatch.setattr(torch.Tensor, "sort", sort_ties_by_falling_ids)
    with pytest.raises(EngineError, match="samples different tokens"):
        check_device_sampler(device)


def build_model(*, samples_on_device: bool) -> TransformersModel:
    options = transformers.TransformersOptions(device="cpu", dtype="float32")
    model, _ = build_paged_model(load_network(tiny.find_bundled_model(), options))
    model.samples_on_device = samples_on_device
    return model


def test_engine_tokens_match_for_host_and_device_sampler() -> None:
    numbers = itertools.count()
    prompt = tuple(np.random.default_rng(5).integers(3, 250, 60).tolist())
    samplings = [
        GREEDY,
        Sampling(temperature=0.9, seed=1),
        Sampling(temperature=1.2, top_p=0.8, top_k=30, seed=2),
        Sampling(temperature=1.2, min_p=0.05, repetition_penalty=1.2, seed=3, bad_words=((9,),)),
        replace(GREEDY, frequency_penalty=0.7, logit_bias=((11, 3.0), (12, -5.0))),
    ]
    streams: list[list[Outputs]] = []
    for samples_on_device in (False, True):
        bench = StepperHarness(
            build_model(samples_on_device=samples_on_device), SchedulerConfig(max_num_seqs=8)
        )
        requests = [
            TokenRequest(
                id=str(next(numbers)), prompt=prompt, max_tokens=24, sampling=one, logprobs=2
            )
            for one in samplings
        ]
        matched = replace(requests[1], matcher=AllowedTokensMatcher([{5, 6, 7}, {8}, {9, 10}]))
        streams.append([bench.add(request) for request in (*requests, matched)])
        bench.finish()
    for on_host, by_torch in zip(*streams, strict=True):
        assert by_torch.tokens == on_host.tokens
        scores_agree(by_torch.scores, on_host.scores)
    assert streams[1][-1].tokens[1] == 8


def test_can_sample_on_device_auto_excludes_cpu() -> None:
    found = {
        setting: can_sample_on_device(setting, torch.device("cpu"))
        for setting in ("auto", "host", "model")
    }
    assert found == {"auto": False, "host": False, "model": True}


def test_can_sample_on_device_unsupported_falls_back_or_raises() -> None:
    assert not can_sample_on_device("auto", torch.device("meta"))
    with pytest.raises(EngineError, match="cannot sample"):
        can_sample_on_device("model", torch.device("meta"))
