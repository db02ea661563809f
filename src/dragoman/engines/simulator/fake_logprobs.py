"""What a model would have thought of its tokens, pretended: consistent with each other and with what was said. Pure."""

from __future__ import annotations

import math

from ...core.engine import TokenLogprob
from .keyed_rng import KeyedRandom

_STRIDE = 7919
"""A prime, so that steps of it meet every id of (nearly) every vocabulary before one comes again."""


def fake_logprob(token: int, alternatives: int, vocab_size: int, rng: KeyedRandom) -> TokenLogprob:
    """The token was the likeliest, at one half or more; its alternatives share what is left, so that all
    probabilities together stay below 1 and `top` is in order."""
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
