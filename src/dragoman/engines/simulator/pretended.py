"""What a model would have thought of its tokens, pretended: consistent with each other and with what was said. Pure."""

from __future__ import annotations

import math

from ...core.engine import Score
from .draws import Draws

_STRIDE = 7919
"""A prime, so that steps of it meet every id of (nearly) every vocabulary before one comes again."""


def pretend(token: int, alternatives: int, vocab_size: int, draws: Draws) -> Score:
    """The token was the likeliest, at one half or more; its alternatives share what is left, so that all
    probabilities together stay below 1 and `top` is in order."""
    likely = 0.5 + draws.unit() / 2
    logprob = math.log(likely)
    if alternatives <= 0:
        return Score(logprob, 1, ())
    top = [(token, logprob)]
    share = 1.0 - likely
    others = vocab_size - 1
    start = draws.below(others) if others else 0
    for place in range(min(alternatives, vocab_size) - 1):
        share /= 2
        other = (token + 1 + (start + place * _STRIDE) % others) % vocab_size
        top.append((other, math.log(max(share, 1e-30))))
    return Score(logprob, 1, tuple(top))
