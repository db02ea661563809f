"""Fake logprobs of sampled tokens: consistent with each other and with the output. Pure."""

from __future__ import annotations

import math

from ...core.engine import TokenLogprob
from .keyed_rng import KeyedRandom

_STRIDE = 7919
"""A prime stride, so that it visits every id of (nearly) every vocabulary before any id repeats."""


def fake_logprob(token: int, alternatives: int, vocab_size: int, rng: KeyedRandom) -> TokenLogprob:
    """Fake a logprob: the token has probability one half or more; the alternatives share the rest, so that all
    probabilities sum to less than 1 and `top` is in order.
    """
    probability = 0.5 + rng.random() / 2
    logprob = math.log(probability)
    if alternatives <= 0:
        return TokenLogprob(logprob, 1, ())
    top = [(token, logprob)]
    share = 1.0 - probability
    others = vocab_size - 1
    start = rng.randbelow(others) if others else 0
    for rank in range(min(alternatives, vocab_size) - 1):
        share /= 2
        other = (token + 1 + (start + rank * _STRIDE) % others) % vocab_size
        top.append((other, math.log(max(share, 1e-30))))
    return TokenLogprob(logprob, 1, tuple(top))
