"""Whether a model says the same with keys and values in pages as by itself: a model that loads must also be right.

Models with another state than keys and values, or with an attention that cannot be paged, are found out here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...core.engine import TokenRequest
from ...core.errors import EngineError
from .blocks import BLOCK_SIZE
from .engine import build_rng
from .model import Model, Runner
from .scheduler import Chunk
from .sequence import Sequence

Floats = NDArray[np.float32]

CHUNK_BOUNDARIES = (0, BLOCK_SIZE + 1, 2 * BLOCK_SIZE - 1, 2 * BLOCK_SIZE)
"""A piece over the end of a block, one within a block, and a single token."""


def build_test_tokens(vocab: int) -> list[int]:
    """The tokens that a model is tried with."""
    return [17 * position % vocab for position in range(CHUNK_BOUNDARIES[-1])]


def check_paging(
    model: Model, build_runner: Callable[[int], Runner], expected: Floats, *, kind: str, tolerance: float
) -> None:
    """expected: [tokens, vocab] logits that the model gives for `trial` by itself. make: a runner over so many blocks.

    kind: what the model is called. tolerance: of the largest logit. Raises EngineError.
    """
    try:
        actual = _compute_in_chunks(build_runner(CHUNK_BOUNDARIES[-1] // BLOCK_SIZE + 1), model.vocab)
    except (EngineError, RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        raise EngineError(f"{kind} cannot be batched: {error}") from error
    if not np.abs(actual - expected).max() <= tolerance * np.abs(expected).max():
        raise EngineError(f"{kind} cannot be batched: its output with paged attention differs")


def _compute_in_chunks(runner: Runner, vocab: int) -> Floats:
    request = TokenRequest(id="verify", prompt=tuple(build_test_tokens(vocab)), max_tokens=1, prompt_logprobs=0)
    sequence = Sequence(0, request, vocab=vocab, max_model_len=CHUNK_BOUNDARIES[-1] + 1, rng_factory=build_rng)
    sequence.blocks = list(range(1, CHUNK_BOUNDARIES[-1] // BLOCK_SIZE + 1))
    spans = [
        runner.forward([Chunk(sequence, begin, end)]).compute_span_logits(0, 0, end - begin)
        for begin, end in pairwise(CHUNK_BOUNDARIES)
    ]
    return np.concatenate(spans)
