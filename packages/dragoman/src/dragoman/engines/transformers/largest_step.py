"""The largest step that a model may have to compute, whose memory is measured before the
KV cache gets the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...core.errors import EngineError
from ...core.token_engine import TokenRequest
from ..batching import BLOCK_SIZE, Chunk
from ..batching.sequence import Sequence
from .backend import Device, torch
from .transformers_model import TransformersModel

log = logging.getLogger(__name__)


def compute_largest_step(
    model: TransformersModel, max_tokens: int, max_pairs: int, max_model_len: int
) -> int:
    """Compute the last chunk of a prompt that is as long as a step allows, and return the
    length of that prompt.

    max_tokens: maximum tokens of a step.
    max_pairs: maximum pairs of a query and a key of a step.
    """
    num_tokens = min(max_tokens, max_model_len - 1)
    num_keys = max(min(max_pairs // num_tokens, max_model_len - 1), num_tokens)
    num_blocks = -(-num_keys // BLOCK_SIZE)
    request = TokenRequest(id="largest step", prompt=(0,) * num_keys, max_tokens=1)
    sequence = Sequence(
        -1, request, vocab=model.vocab, max_model_len=num_keys + 1, rng_factory=_build_no_rng
    )
    # Block 0 and the state of slot 0 are never allocated.
    sequence.blocks = list(range(1, num_blocks + 1))
    sequence.state_slot = 1 if model.has_state else None
    runner = model.build_runner(num_blocks + 1, 2 if model.has_state else 0)
    try:
        states = runner.forward([Chunk(sequence, num_keys - num_tokens, num_keys)])
        states.compute_last_logits([0])
    finally:
        runner.close()
    return num_keys


def measure_largest_step(
    model: TransformersModel,
    device: Device,
    max_tokens: int,
    max_pairs: int,
    max_model_len: int,
    bytes_per_token: int,
) -> int:
    """Measure the bytes that the largest step takes on a CUDA device, beside weights and
    KV cache.

    bytes_per_token: of the KV cache.

    Raises: EngineError if it takes more than is free.
    """
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        num_keys = compute_largest_step(model, max_tokens, max_pairs, max_model_len)
    except torch.cuda.OutOfMemoryError as error:
        raise EngineError(
            f"a step of {max_tokens} tokens takes more memory than is free beside the weights: "
            f"lower --max-num-batched-tokens and --max-model-len"
        ) from error
    # The runner allocates the KV cache of its one prompt when it computes.
    peak: int = torch.cuda.max_memory_allocated(device) - before - num_keys * bytes_per_token
    log.info(
        "a step of %d tokens after %d others takes %d MiB",
        min(max_tokens, num_keys),
        max(num_keys - max_tokens, 0),
        peak >> 20,
    )
    return peak


def _build_no_rng(seed: int | None) -> Callable[[], float]:
    """Build the random generator of a sequence that is never sampled."""
    del seed
    return float
