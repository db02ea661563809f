"""Samples the next token of every sequence of a step, in vLLM's order. Pure: each sequence has its own generator.

Masks (allowed ids, grammar, bad words, min_tokens), logit_bias, penalties; then argmax for greedy sequences, and for
the others temperature, min_p, top_k, top_p and one uniform draw through the inverse cumulative distribution in order
of token ids. Rows are processed one by one: a choice does not depend on the rest of the batch, and a row of a large
vocabulary stays in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.engine import TokenLogprob
from .logprobs import build_logprob, log_softmax
from .sampling import SamplingState

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

NO_TOKEN = -1
"""No token is allowed, or all logits are NaN."""

_BLOCK = 256
"""Tokens whose maximum bounds the k-th best token from below."""
_SMALL = 2048
"""Candidates that are sorted at once."""
_WORTHWHILE = 0.9
"""A set of candidates is reduced again as long as this leaves a smaller share of it."""


class NumpySampledRows:
    """As `model.SampledRows`: sampled here from [n, vocab] logits, which are not modified."""

    def __init__(self, logits: Floats, states: Sequence[SamplingState], masks: Sequence[bytes | None]) -> None:
        self._logits, self._states = logits, states
        self.tokens = sample(logits, states, masks)

    def compute_logprobs(self, tokens: Sequence[int]) -> list[TokenLogprob | None]:
        requests = [state.request for state in self._states]
        rows = [row for row, token in enumerate(tokens) if token != NO_TOKEN and requests[row].logprobs is not None]
        scores: list[TokenLogprob | None] = [None] * len(tokens)
        if rows:
            for row, logprobs in zip(rows, log_softmax(self._logits[rows]), strict=True):
                request = requests[row]
                scores[row] = build_logprob(logprobs, tokens[row], request.logprobs or 0, request.logprob_ids)
        return scores

    def is_finite(self, row: int) -> bool:
        return bool(np.isfinite(self._logits[row]).all())


def sample(logits: Floats, states: Sequence[SamplingState], masks: Sequence[bytes | None]) -> list[int]:
    """Sample a token for each row of [n, vocab] logits, which are not modified; NO_TOKEN if no token is possible."""
    chosen: list[int] = logits.argmax(axis=1).tolist()
    for row, (state, mask) in enumerate(zip(states, masks, strict=True)):
        if not np.isfinite(logits[row, chosen[row]]):
            chosen[row] = NO_TOKEN
        elif mask is not None or not state.is_plain:
            chosen[row] = _choose_token(logits[row].copy(), state, mask)
    return chosen


def _choose_token(logits: Floats, state: SamplingState, mask: bytes | None) -> int:
    """Choose a token by one row of logits, which is overwritten."""
    state.apply_masks(logits, mask)
    if state.has_penalties:
        logits = _apply_penalties(logits, state)
    best = _replace_non_finite(logits)
    if not np.isfinite(best):
        return NO_TOKEN
    return int(logits.argmax()) if state.is_greedy else _draw(logits, best, state)


def _apply_penalties(logits: Floats, state: SamplingState) -> Floats:
    sampling = state.sampling
    repetition, frequency, presence = (
        np.float32(penalty)
        for penalty in (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    )
    # As in the CTRL paper and transformers: dividing a negative logit would make the token more likely.
    repeated = np.where(logits > 0, logits / repetition, logits * repetition)
    logits = np.where(state.appeared, repeated, logits)
    logits -= frequency * state.counts
    logits -= presence * (state.counts > 0)
    return logits


def _replace_non_finite(logits: Floats) -> float:
    """Replace non-finite logits in place: NaN is impossible, +inf is certain. Returns the best."""
    best = float(logits.max())
    if np.isfinite(best):
        return best
    logits[np.isnan(logits)] = -np.inf
    certain = logits == np.inf
    if certain.any():
        logits[:] = -np.inf
        logits[certain] = 0
    return float(logits.max())


def _draw(logits: Floats, best: float, state: SamplingState) -> int:
    """Draw a token from the distribution of one row, which is overwritten. best: its largest logit."""
    sampling, uniform = state.sampling, state.rng() if state.rng else 0.0
    logits -= np.float32(best)
    with np.errstate(over="ignore"):
        logits /= np.float32(sampling.temperature)
    if sampling.min_p > 0:
        logits[logits < np.float32(np.log(min(sampling.min_p, 1.0)))] = -np.inf
    ids = None
    if 0 < sampling.top_k < len(logits):
        ids = _find_top_k(logits, sampling.top_k)
    if sampling.top_p < 1:
        ids = _find_top_p(logits, sampling.top_p) if ids is None else ids[_find_top_p(logits[ids], sampling.top_p)]
    cumulative: NDArray[np.float64] = np.exp((logits if ids is None else logits[ids]).astype(np.float64)).cumsum()
    # The product is less than the total for every double below 1, so some token is always possible.
    index = int(np.searchsorted(cumulative, uniform * float(cumulative[-1]), side="right"))
    return index if ids is None else int(ids[index])


def _find_top_k(logits: Floats, k: int) -> Ints:
    """Find the ids of the k best tokens and of ties with the last of them."""
    ids, values = np.arange(len(logits)), logits
    if k * _BLOCK <= len(logits):
        maxima = np.maximum.reduceat(logits, np.arange(0, len(logits), _BLOCK))
        ids = np.flatnonzero(logits >= np.partition(maxima, len(maxima) - k)[len(maxima) - k])
        values = logits[ids]
    return ids[values >= np.partition(values, len(values) - k)[len(values) - k]]


def _find_top_p(logits: Floats, share: float) -> Ints:
    """Find the indices of the fewest tokens that sum to `share`, the best first, and of ties those of lowest id.

    logits: relative to the best. All tokens outside of a set of candidates together weigh less than what the candidates
    have beyond `share`, so the tokens that are looked for are among them.
    """
    masses = np.exp(logits)
    needed = share * float(masses.sum(dtype=np.float64))
    # Sorting the vocabulary costs milliseconds. A token of less than the average excess cannot be among the best, so
    # most of them are ruled out without a sort, again and again while that pays.
    excess = float(masses.sum(dtype=np.float64)) - needed
    ids = np.flatnonzero(masses >= excess / len(masses))
    masses, size = masses[ids], len(masses)
    while len(ids) < _WORTHWHILE * size:
        size = len(ids)
        possible = masses >= (float(masses.sum(dtype=np.float64)) - needed) / size
        ids, masses = ids[possible], masses[possible]
    last, count = _find_last(masses, needed)
    better, ties = masses > last, np.flatnonzero(masses == last)
    better[ties[: count - int(better.sum())]] = True
    return ids[better]


def _find_last(masses: Floats, needed: float) -> tuple[np.float32, int]:
    """Find the last of the best masses that sum to `needed`, and how many they are."""
    num_better = 0
    while len(masses) > _SMALL:
        # A partition is linear; halving until few are left makes the whole search linear too.
        middle = len(masses) // 2
        masses = np.partition(masses, middle)
        upper = float(masses[middle:].sum(dtype=np.float64))
        if upper >= needed:
            masses = masses[middle:]
        else:
            needed, num_better, masses = needed - upper, num_better + len(masses) - middle, masses[:middle]
    ranked = np.sort(masses)[::-1]
    before = ranked.cumsum(dtype=np.float64) - ranked
    count = max(int(np.searchsorted(before, needed, side="left")), 1)
    return ranked[count - 1], num_better + count
