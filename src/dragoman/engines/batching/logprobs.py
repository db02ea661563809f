"""Log-probabilities from the raw logits, before penalties, masks and temperature (vLLM's `raw_logprobs`). Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.engine import TokenLogprob

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def log_softmax(logits: Floats) -> Doubles:
    """Convert [n, vocab] logits to log-probabilities. Each row is bitwise independent of the others."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def build_logprob(row: Doubles, token: int, alternatives: int, ids: tuple[int, ...] = ()) -> TokenLogprob:
    """Build the logprob of a token with its alternatives.

    row: [vocab] log-probabilities. A token has the same number in `logprob` and in `top`.
    ids: the alternatives beside the token itself; without any, they are the most likely ones.
    """
    logprob = row.item(token)
    top = _find_best(row, alternatives)
    if ids:
        top = tuple(sorted(((id, row.item(id)) for id in {token, *ids}), key=lambda pair: (-pair[1], pair[0])))
    return TokenLogprob(logprob=logprob, rank=int(np.count_nonzero(row > logprob)) + 1, top=top)


def _find_best(row: Doubles, count: int) -> tuple[tuple[int, float], ...]:
    """Find the most likely tokens: by logprob, then by id."""
    if count <= 0:
        return ()
    if count < len(row):
        threshold = np.partition(row, len(row) - count)[len(row) - count]
        ids = np.flatnonzero(row >= threshold)
    else:
        ids = np.arange(len(row))
    best = ids[np.argsort(-row[ids], kind="stable")][:count]
    return tuple(zip(best.tolist(), row[best].tolist(), strict=True))
