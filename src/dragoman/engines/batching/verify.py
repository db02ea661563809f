"""A self-check at startup: the paged KV cache must reproduce the model's own logits.

It rejects models with other state than keys and values, or with attention that cannot be paged.
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
"""A chunk across the end of a block, one within a block, and a single token."""


def build_test_tokens(vocab: int) -> list[int]:
    """Build the test prompt."""
    return [17 * position % vocab for position in range(CHUNK_BOUNDARIES[-1])]


def check_paging(
    model: Model, build_runner: Callable[[int], Runner], expected: Floats, *, kind: str, tolerance: float
) -> None:
    """Compare paged logits with the model's own.

    build_runner: builds a runner over a number of blocks.
    expected: [tokens, vocab] logits of the model without paging, for `build_test_tokens`.
    kind: the model's type, for the error message.
    tolerance: relative to the largest logit.

    Raises: EngineError.
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
