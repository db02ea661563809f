"""Whether a model says the same with paged attention as with the library's own: a model that loads must also be right.

Models with state beside keys and values, or with an attention of their own, fail here and are refused by name.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ...core.engine import TokenRequest
from ...core.errors import EngineError
from ..batching import BLOCK_SIZE, Chunk, seeded
from ..batching.sequence import Sequence
from .backend import Network, torch
from .model import Floats, TransformersModel, TransformersRunner
from .paged import NAME, register

_CUTS = (0, BLOCK_SIZE + 1, 2 * BLOCK_SIZE - 1, 2 * BLOCK_SIZE)
"""A piece over the end of a block, one within a block, and a single token."""


def page(network: Network) -> tuple[TransformersModel, int]:
    """The network with paged attention, and the bytes that it keeps of a token.

    Raises EngineError where it does not say the same as before.
    """
    model = TransformersModel(network)
    ids = [17 * place % model.vocab for place in range(_CUTS[-1])]
    with torch.inference_mode():
        tensor = torch.tensor([ids], device=network.device)
        expected = network(input_ids=tensor, use_cache=False).logits[0].float().cpu().numpy()
    kind = type(network).__name__
    register()
    try:
        network.set_attn_implementation(NAME)
        runner = model.runner(num_blocks=len(ids) // BLOCK_SIZE + 1)
        found = _in_pieces(runner, ids, model.vocab)
    except (EngineError, RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        raise EngineError(f"{kind} cannot be batched: {error}") from error
    allowed = 1e-3 if network.dtype == torch.float32 else 5e-2
    if not np.abs(found - expected).max() <= allowed * np.abs(expected).max():
        raise EngineError(f"{kind} cannot be batched: with keys and values in pages it does not say the same")
    return model, runner.pool.bytes_per_token


def _in_pieces(runner: TransformersRunner, ids: list[int], vocab: int) -> Floats:
    request = TokenRequest(id="verify", prompt=tuple(ids), max_tokens=1, prompt_logprobs=0)
    sequence = Sequence(0, request, vocab=vocab, max_model_len=len(ids) + 1, draws=seeded)
    sequence.blocks = list(range(1, len(ids) // BLOCK_SIZE + 1))
    logits: list[Floats] = []
    for begin, end in pairwise(_CUTS):
        logits.append(runner.forward([Chunk(sequence, begin, end)]).span(0, 0, end - begin))
    return np.concatenate(logits)
