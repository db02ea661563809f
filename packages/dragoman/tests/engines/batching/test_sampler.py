"""Sampling: every parameter is compared with a slow, simple reference."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman.core.request import Sampling
from dragoman.core.token_engine import TokenRequest
from dragoman.engines.batching.sampler import NO_TOKEN, NumpySampledRows, SamplingState, sample

VOCAB = 24
PROMPT = (1, 2, 3, 2)
# Sixteenths: values closer than float32 can distinguish after exp() are a tie to the
#     engine but not to the reference.
LOGITS = st.lists(
    st.integers(-96, 96).map(lambda sixteenths: sixteenths / 16), min_size=VOCAB, max_size=VOCAB
)
TIED = st.lists(st.sampled_from([-1.0, 0.5, 0.75, 3.0]), min_size=VOCAB, max_size=VOCAB)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.77, 1.0, 1.9]),
    top_p=st.sampled_from([1.0, 0.93, 0.61, 0.07]),
    top_k=st.sampled_from([0, 1, 2, 7, VOCAB, 1000]),
    min_p=st.sampled_from([0.0, 0.013, 0.31, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.7, -1.1]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logit_bias=st.sampled_from([(), ((3, 5.0), (4, -100.0), (3, 0.5))]),
    allowed_token_ids=st.sampled_from([None, tuple(range(2, VOCAB))]),
    bad_words=st.sampled_from([(), ((9,), (5, 6), (4, 5, 7), (8, 6), (6,) * 9)]),
)
Ids = tuple[int, ...]
OUTPUTS = st.sampled_from([(), (5,), (4, 5), (4, 5, 5, 11)])
CHANCE = st.floats(0, 1, exclude_max=True)


def build_constant_rng(uniform: float) -> Callable[[int | None], Callable[[], float]]:
    return lambda seed: lambda: uniform


def state(
    sampling: Sampling, *, output: Ids = (), uniform: float = 0.5, **request: object
) -> SamplingState:
    template = TokenRequest(id="a", prompt=PROMPT, max_tokens=9, sampling=sampling)
    created = SamplingState(replace(template, **request), VOCAB, build_constant_rng(uniform))
    for token in output:
        created.observe(token)
    return created


def rows(*logits: list[float]) -> NDArray[np.float32]:
    return np.array(logits, np.float32)


def reference(logits: list[float], sampling: Sampling, output: Ids) -> list[float]:
    """Compute the probability of every token; applies vLLM's definitions one after the
    other.
    """
    z = list(logits)
    for id in range(VOCAB):
        if sampling.allowed_token_ids is not None and id not in sampling.allowed_token_ids:
            z[id] = -math.inf
    for *start, last in sampling.bad_words:
        if len(start) <= len(output) and list(output[len(output) - len(start) :]) == start:
            z[last] = -math.inf
    for id, bias in sampling.logit_bias:
        z[id] += bias
    for id in {*PROMPT, *output}:
        z[id] = (
            z[id] / sampling.repetition_penalty
            if z[id] > 0
            else z[id] * sampling.repetition_penalty
        )
    for id in set(output):
        z[id] -= sampling.frequency_penalty * output.count(id) + sampling.presence_penalty
    z = [value / sampling.temperature for value in z]
    best = max(z)
    z = [value if math.exp(value - best) >= sampling.min_p else -math.inf for value in z]
    if 0 < sampling.top_k < VOCAB:
        least = sorted(z, reverse=True)[sampling.top_k - 1]
        z = [value if value >= least else -math.inf for value in z]
    p = [math.exp(value - best) for value in z]
    if sampling.top_p < 1:
        p = nucleus(p, sampling.top_p)
    return [value / sum(p) for value in p]


def nucleus(p: list[float], top_p: float) -> list[float]:
    masses = [0.0] * len(p)
    before = 0.0
    for id in sorted(range(len(p)), key=lambda id: (-p[id], id)):
        if before >= top_p * sum(p):
            break
        masses[id] = p[id]
        before += p[id]
    return masses


def draw(p: list[float], uniform: float) -> int:
    """Sample by the inverse distribution function, in the order of ids. Draws near a
    boundary are skipped.
    """
    bounds = np.cumsum(p)
    assume(np.abs(bounds - uniform).min() > 1e-5)
    return int(np.searchsorted(bounds, uniform))


@given(LOGITS, SAMPLINGS, OUTPUTS, CHANCE)
def test_sample_matches_reference_for_all_parameters(
    logits: list[float], sampling: Sampling, output: Ids, uniform: float
) -> None:
    expected = draw(reference(logits, sampling, output), uniform)
    assert sample(rows(logits), [state(sampling, output=output, uniform=uniform)], [None]) == [
        expected
    ]


@given(TIED, st.sampled_from([0, 3, 9]), st.sampled_from([1.0, 0.83, 0.41]), CHANCE)
def test_sample_ties_top_p_prefers_lower_id_top_k_keeps_all(
    logits: list[float], top_k: int, top_p: float, uniform: float
) -> None:
    sampling = Sampling(top_k=top_k, top_p=top_p)
    expected = draw(reference(logits, sampling, ()), uniform)
    assert sample(rows(logits), [state(sampling, uniform=uniform)], [None]) == [expected]


@given(LOGITS, SAMPLINGS, OUTPUTS)
def test_greedy_sample_returns_best_allowed_token(
    logits: list[float], sampling: Sampling, output: Ids
) -> None:
    greedy = replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
    p = reference(logits, replace(greedy, temperature=1.0), output)
    assume(sorted(p)[-1] - sorted(p)[-2] > 1e-6)
    assert sample(rows(logits), [state(greedy, output=output)], [None]) == [p.index(max(p))]


@given(st.lists(st.tuples(LOGITS, SAMPLINGS, OUTPUTS, CHANCE), min_size=2, max_size=6))
def test_sample_rows_are_independent(
    cases: list[tuple[list[float], Sampling, Ids, float]],
) -> None:
    def states() -> list[SamplingState]:
        return [
            state(sampling, output=output, uniform=uniform)
            for _, sampling, output, uniform in cases
        ]

    logits = rows(*(row for row, *_ in cases))
    before = logits.copy()
    together = sample(logits, states(), [None] * len(cases))
    assert np.array_equal(logits, before)
    apart = [sample(logits[row : row + 1], [one], [None])[0] for row, one in enumerate(states())]
    assert together == apart


def test_frequency_penalty_scales_and_presence_penalty_does_not() -> None:
    logits = [0.0] * VOCAB
    logits[5] = 3.0
    logits[6] = 1.5
    greedy = Sampling(temperature=0)
    for times, frequency, presence, best in [
        (2, 1.0, 0.0, 6),
        (1, 1.0, 0.0, 5),
        (9, 0.0, 1.0, 5),
        (1, 0.0, 2.0, 6),
    ]:
        penalties = replace(greedy, frequency_penalty=frequency, presence_penalty=presence)
        assert sample(rows(logits), [state(penalties, output=(5,) * times)], [None]) == [best]


def test_sample_temperature_near_zero_is_greedy() -> None:
    logits = [0.0, 1.0, 1.001, *[0.0] * (VOCAB - 3)]
    assert sample(rows(logits), [state(Sampling(temperature=9e-6), uniform=0.0)], [None]) == [2]
    assert sample(rows(logits), [state(Sampling(temperature=1.1e-5), uniform=0.5)], [None]) == [2]


def test_sample_stop_tokens_are_masked_until_min_tokens() -> None:
    logits = [0.0] * 5 + [9.0, 8.0, 7.0] + [0.0] * (VOCAB - 8)
    waiting = state(Sampling(temperature=0), min_tokens=2, stop_token_ids=frozenset({5, 6, 999}))
    assert sample(rows(logits), [waiting], [None]) == [7]
    waiting.observe(7)
    assert sample(rows(logits), [waiting], [None]) == [7]
    waiting.observe(7)
    assert sample(rows(logits), [waiting], [None]) == [5]


def test_sample_accepts_mask_longer_or_shorter_than_vocab() -> None:
    logits = [float(id) for id in range(VOCAB)]
    greedy = state(Sampling(temperature=0))
    assert sample(rows(logits), [greedy], [b"\xff" * 40]) == [VOCAB - 1]
    assert sample(rows(logits), [greedy], [b"\x03"]) == [1]
    assert sample(rows(logits), [greedy], [b"\x01\x01"]) == [8]


@given(
    SAMPLINGS,
    OUTPUTS,
    st.one_of(st.none(), st.binary(max_size=5)),
    st.sampled_from([0, 9]),
    st.integers(12, VOCAB),
)
def test_pack_masks_matches_apply_masks(
    sampling: Sampling, output: Ids, mask: bytes | None, min_tokens: int, vocab: int
) -> None:
    if sampling.allowed_token_ids is not None:
        sampling = replace(sampling, allowed_token_ids=(0, 6, 9, vocab - 1))
    request = TokenRequest(
        id="a", prompt=PROMPT, max_tokens=9, sampling=replace(sampling, logit_bias=())
    )
    stops = frozenset({0, 5, vocab - 1, 99})
    created = SamplingState(
        replace(request, min_tokens=min_tokens, stop_token_ids=stops),
        vocab,
        build_constant_rng(0.5),
    )
    for token in output:
        created.observe(token)
    row = np.zeros(vocab, np.float32)
    created.apply_masks(row, mask)
    packed = created.pack_masks(mask, vocab)
    allowed = (
        np.ones(vocab, np.uint8)
        if packed is None
        else np.unpackbits(packed, count=vocab, bitorder="little")
    )
    assert np.array_equal(allowed.astype(bool), np.isfinite(row))


def test_compute_logprobs_scores_given_tokens_or_returns_none() -> None:
    logits = rows([float(id) for id in range(VOCAB)], [0.0] * VOCAB, [math.nan] * VOCAB)
    scored = [state(Sampling(temperature=0), logprobs=count) for count in (1, None, 2)]
    sampled = NumpySampledRows(logits, scored, [None] * 3)
    assert sampled.tokens == [VOCAB - 1, 0, NO_TOKEN]
    own, other = (sampled.compute_logprobs(tokens) for tokens in (sampled.tokens, [3, 4, NO_TOKEN]))
    assert (own[1:], other[1:]) == ([None, None], [None, None])
    assert own[0] is not None
    assert other[0] is not None
    assert (own[0].rank, other[0].rank) == (1, VOCAB - 3)
    assert own[0].top == other[0].top == ((VOCAB - 1, own[0].logprob),)
    assert [sampled.is_finite(row) for row in range(3)] == [True, True, False]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sample_without_allowed_token_returns_no_token(temperature: float) -> None:
    sampling = Sampling(
        temperature=temperature, top_k=3, top_p=0.5, min_p=0.1, repetition_penalty=1.2
    )
    other = state(Sampling(temperature=0))
    logits = rows([1.0] * VOCAB, [*[0.0] * 4, 9.0, *[0.0] * (VOCAB - 5)])
    assert sample(logits, [state(sampling), other], [b"", None]) == [NO_TOKEN, 4]
    assert sample(
        logits, [state(replace(sampling, allowed_token_ids=())), other], [None, None]
    ) == [NO_TOKEN, 4]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sample_tolerates_non_finite_logits_and_biases(temperature: float) -> None:
    sampling = Sampling(temperature=temperature)
    assert sample(rows([math.nan] * VOCAB), [state(sampling)], [None]) == [NO_TOKEN]
    certain = replace(sampling, logit_bias=((4, math.inf), (5, 1e300), (6, -math.inf)))
    assert sample(rows([0.0] * VOCAB), [state(certain, uniform=0.0)], [None]) == [4]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_sample_extreme_random_values_hit_allowed_tokens(uniform: float) -> None:
    mask = sum(1 << id for id in (3, 4, 20)).to_bytes(3, "little")
    logits = np.random.default_rng(0).standard_normal((1, VOCAB), np.float32)
    assert sample(logits, [state(Sampling(), uniform=uniform)], [mask]) == [
        3 if uniform == 0 else 20
    ]


def test_greedy_state_never_builds_rng() -> None:
    def fail_on_draw(seed: int | None) -> Callable[[], float]:
        raise AssertionError("chance was asked for")

    request = TokenRequest(
        id="a", prompt=PROMPT, max_tokens=1, sampling=Sampling(temperature=0, seed=3)
    )
    assert SamplingState(request, VOCAB, fail_on_draw).is_plain


LARGE = 40_000
"""Size of a vocabulary for which the best tokens are not found by sorting all of it."""


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 9.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"),
    [(0, 0.9), (0, 0.5), (0, 0.999), (0, 1e-9), (50, 1.0), (50, 0.8), (9000, 0.7)],
)
def test_sample_large_vocab_matches_full_sort(top_k: int, top_p: float, spread: float) -> None:
    """Logits are multiples of 1/16, so that many tokens tie."""
    rng = np.random.default_rng(int(spread * 10) + top_k)
    logits = ((rng.normal(size=LARGE) * spread * 16).round() / 16).astype(np.float32)
    sampling = Sampling(temperature=0.5, top_k=top_k, top_p=top_p)
    order = sorted(range(LARGE), key=lambda id: (-logits[id], id))
    if top_k:
        order = [id for id in order if logits[id] >= logits[order[top_k - 1]]]
    masses = np.exp((logits[order].astype(np.float64) - logits.max()) / 0.5)
    before = masses.cumsum() - masses
    near = np.abs(before - top_p * masses.sum()) < 1e-6 * masses.sum()
    nucleus = sorted(
        order[: max(int((before < top_p * masses.sum()).sum()), 1)] if top_p < 1 else order
    )
    cumulative = np.exp((logits[nucleus].astype(np.float64) - logits.max()) / 0.5).cumsum()
    for uniform in rng.random(20):
        request = TokenRequest(id="a", prompt=PROMPT, max_tokens=9, sampling=sampling)
        created = SamplingState(request, LARGE, build_constant_rng(uniform))
        (token,) = sample(logits[None], [created], [None])
        expected = int(np.searchsorted(cumulative, float(uniform * cumulative[-1]), side="right"))
        # Values that float32 cannot distinguish from the boundary move it by this many
        # tokens.
        most = int(near.sum()) if top_p < 1 else 0
        assert token in nucleus[max(expected - most, 0) : expected + most + 1]
