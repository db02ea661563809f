"""Samples the next token of every sequence of a step, in vLLM's order. Pure: each sequence has its own generator.

Masks (allowed ids, grammar, bad words, min_tokens), logit_bias, penalties; then argmax for greedy sequences, and for
the others temperature, min_p, top_k, top_p and one uniform draw through the inverse cumulative distribution in order
of token ids. Every operation treats each row independently, so a choice does not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .sampling import SamplingState

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

NO_TOKEN = -1
"""No token is allowed, or all logits are NaN."""


def sample(logits: Floats, states: Sequence[SamplingState], masks: Sequence[bytes | None]) -> list[int]:
    """Sample a token for each row of [n, vocab] logits, which are not modified; NOTHING if no token is possible."""
    chosen = logits.argmax(axis=1)
    best = np.take_along_axis(logits, chosen[:, None], axis=1)[:, 0]
    chosen[~np.isfinite(best)] = NO_TOKEN
    special = [row for row, state in enumerate(states) if masks[row] is not None or not state.is_plain]
    special = [row for row in special if chosen[row] != NO_TOKEN]
    if special:
        chosen[special] = _choose_tokens(
            logits[special], [states[row] for row in special], [masks[row] for row in special]
        )
    return chosen.tolist()


def _choose_tokens(logits: Floats, states: list[SamplingState], masks: list[bytes | None]) -> Ints:
    for row, state, mask in zip(logits, states, masks, strict=True):
        state.apply_masks(row, mask)
    with_penalties = [row for row, state in enumerate(states) if state.has_penalties]
    if with_penalties:
        logits[with_penalties] = _apply_penalties(logits[with_penalties], [states[row] for row in with_penalties])
    possible = _replace_non_finite(logits)
    chosen = logits.argmax(axis=1)
    sampled = [row for row, state in enumerate(states) if not state.is_greedy]
    if sampled:
        chosen[sampled] = _sample_rows(logits[sampled], [states[row] for row in sampled])
    chosen[~possible] = NO_TOKEN
    return chosen


def _apply_penalties(logits: Floats, states: list[SamplingState]) -> Floats:
    repetition, frequency, presence = (
        np.array([[value] for value in values], np.float32)
        for values in zip(
            *(
                (s.sampling.repetition_penalty, s.sampling.frequency_penalty, s.sampling.presence_penalty)
                for s in states
            ),
            strict=True,
        )
    )
    counts = np.stack([state.counts for state in states])
    appeared = np.stack([state.appeared for state in states])
    repeated = np.where(logits > 0, logits / repetition, logits * repetition)
    logits = np.where(appeared, repeated, logits)
    logits -= frequency * counts
    logits -= presence * (counts > 0)
    return logits


def _replace_non_finite(logits: Floats) -> NDArray[np.bool_]:
    """Replace non-finite logits in place: NaN is impossible, +inf is certain. Returns which rows allow any token."""
    best = logits.max(axis=1)
    non_finite = ~np.isfinite(best)
    if non_finite.any():
        rows = logits[non_finite]
        rows[np.isnan(rows)] = -np.inf
        certain = rows == np.inf
        rows[certain.any(axis=1)] = -np.inf
        rows[certain] = 0
        logits[non_finite] = rows
        best = logits.max(axis=1)
    return np.isfinite(best)


def _sample_rows(logits: Floats, states: list[SamplingState]) -> Ints:
    samplings = [state.sampling for state in states]
    logits -= np.maximum(logits.max(axis=1, keepdims=True), np.finfo(np.float32).min)
    with np.errstate(over="ignore"):
        logits /= np.array([[sampling.temperature] for sampling in samplings], np.float32)
    _apply_min_p(logits, [sampling.min_p for sampling in samplings])
    cut = [row for row, s in enumerate(samplings) if 0 < s.top_k < logits.shape[1] or s.top_p < 1]
    if cut:
        cut_samplings = [samplings[row] for row in cut]
        logits[cut] = _apply_top_k_top_p(
            logits[cut], [s.top_k for s in cut_samplings], [s.top_p for s in cut_samplings]
        )
    uniform = np.array([[state.rng() if state.rng else 0.0] for state in states])
    cumulative = np.exp(logits.astype(np.float64)).cumsum(axis=1)
    # The product is less than the total for every double below 1, so argmax always finds a possible token.
    return (cumulative > uniform * cumulative[:, -1:]).argmax(axis=1)


def _apply_min_p(logits: Floats, min_p: list[float]) -> None:
    """Mask tokens less likely than min_p times the best one. logits: relative to the best."""
    if any(value > 0 for value in min_p):
        with np.errstate(divide="ignore"):
            bound = np.log(np.minimum(np.array(min_p)[:, None], 1.0))
        logits[logits < bound] = -np.inf


def _apply_top_k_top_p(logits: Floats, top_k: list[int], top_p: list[float]) -> Floats:
    """Keep the top_k best tokens (and ties with the last of them), then the fewest that sum to top_p."""
    vocab = logits.shape[1]
    ranked = np.sort(logits, axis=1)[:, ::-1].copy()
    ranks = np.array([k - 1 if 0 < k < vocab else vocab - 1 for k in top_k])
    bound = np.take_along_axis(ranked, ranks[:, None], axis=1)
    ranked[ranked < bound] = -np.inf
    masses = np.exp(ranked.astype(np.float64))
    cumulative = masses.cumsum(axis=1)
    before = cumulative - masses
    share = np.array(top_p)[:, None]
    num_top = np.maximum((before < share * cumulative[:, -1:]).sum(axis=1, keepdims=True), 1)
    num_top[share >= 1] = vocab
    last = np.maximum(np.take_along_axis(ranked, num_top - 1, axis=1), bound)
    better = logits > last
    # Of the ties with the last token only as many as fit stay, by id; all of them if top_p cuts nothing.
    ties = logits == last
    fits = ties.cumsum(axis=1) <= num_top - better.sum(axis=1, keepdims=True)
    return np.where(better | (ties & fits), logits, np.float32(-np.inf))
