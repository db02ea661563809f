"""Sampling state of one sequence: its masks, token counts and random generator.

`sampler` processes the rows of a step together; this module handles one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...core.engine import TokenRequest

Floats = NDArray[np.float32]

RngFactory = Callable[[int | None], Callable[[], float]]
"""Builds a sequence's random generator from its seed (None: unseeded). It returns uniform numbers in [0, 1)."""

GREEDY_BELOW = 1e-5
"""Temperatures below this sample greedily (vLLM's `_SAMPLING_EPS` in vllm/v1/sample/sampler.py)."""


class SamplingState:
    """Sampling parameters and state of one sequence.

    is_plain: greedy with unmodified logits.
    appeared_ids: the tokens of `appeared`, each once.
    bias_ids, biases: of logit_bias, in order; an id may occur several times.
    """

    def __init__(self, request: TokenRequest, vocab: int, rng_factory: RngFactory) -> None:
        self.sampling = sampling = request.sampling
        self.request = request
        self._output: list[int] = []
        self.is_greedy = sampling.temperature < GREEDY_BELOW
        self.rng = None if self.is_greedy else rng_factory(sampling.seed)
        self.has_penalties = (
            sampling.presence_penalty != 0 or sampling.frequency_penalty != 0 or sampling.repetition_penalty != 1
        )
        self.counts = np.zeros(vocab if self.has_penalties else 0, np.int32)
        """How many times each token was sampled."""
        self.appeared = np.zeros(vocab if self.has_penalties else 0, np.bool_)
        """Which tokens are in the prompt or were sampled."""
        if self.has_penalties:
            self.appeared[list(request.prompt)] = True
        self.appeared_ids: list[int] = np.flatnonzero(self.appeared).tolist()
        self._stop_ids = np.array(sorted(id for id in request.stop_token_ids if 0 <= id < vocab), np.int64)
        self._disallowed_mask = _build_disallowed_mask(request, vocab)
        self.bias_ids = np.array([id for id, _ in sampling.logit_bias], np.int64)
        biases = np.array([bias for _, bias in sampling.logit_bias], np.float64).clip(-1e30, 1e30)
        self.biases: Floats = biases.astype(np.float32)
        self._has_edits = bool(sampling.logit_bias or sampling.bad_words) or self._disallowed_mask is not None

    @property
    def is_below_min_tokens(self) -> bool:
        """Whether stop tokens are still masked."""
        return len(self._output) < self.request.min_tokens and len(self._stop_ids) > 0

    @property
    def is_plain(self) -> bool:
        return self.is_greedy and not (self.has_penalties or self._has_edits or self.is_below_min_tokens)

    def observe(self, token: int) -> None:
        self._output.append(token)
        if self.has_penalties:
            self.counts[token] += 1
            if not self.appeared[token]:
                self.appeared[token] = True
                self.appeared_ids.append(token)

    def apply_masks(self, row: Floats, mask: bytes | None) -> None:
        """Apply the masks and then the biases to one row of logits, in place. mask: as `Matcher.mask` returns it."""
        if self._disallowed_mask is not None:
            row[self._disallowed_mask] = -np.inf
        if mask is not None:
            row[~_unpack_mask(mask, len(row))] = -np.inf
        row[self._find_forbidden_ids(len(row))] = -np.inf
        if len(self.bias_ids):
            np.add.at(row, self.bias_ids, self.biases)

    def pack_masks(self, mask: bytes | None, vocab: int) -> NDArray[np.uint8] | None:
        """Pack the masks that `apply_masks` applies, with eight ids a byte, little-endian in each; None if there are
        none."""
        forbidden = self._find_forbidden_ids(vocab)
        if mask is None and self._disallowed_mask is None and not len(forbidden):
            return None
        size = -(-vocab // 8)
        packed = np.full(size, 255, np.uint8)
        if self._disallowed_mask is not None:
            packed &= np.packbits(~self._disallowed_mask, bitorder="little")
        if mask is not None:
            packed &= np.frombuffer(mask[:size].ljust(size, b"\0"), np.uint8)
        np.bitwise_and.at(packed, forbidden >> 3, ~(1 << (forbidden & 7)).astype(np.uint8))
        return packed

    def _find_forbidden_ids(self, vocab: int) -> NDArray[np.int64]:
        """Find the ids that neither a grammar nor a list of allowed ids masks: the last id of a bad word after its
        other ids (only sampled tokens count, as in vLLM), and stop tokens below min_tokens."""
        num_sampled = len(self._output)
        ends = [
            word[-1]
            for word in self.sampling.bad_words
            if 0 < len(word) <= num_sampled + 1
            and tuple(self._output[num_sampled - len(word) + 1 :]) == word[:-1]
            and 0 <= word[-1] < vocab
        ]
        return np.array([*ends, *(self._stop_ids if self.is_below_min_tokens else ())], np.int64)


def _build_disallowed_mask(request: TokenRequest, vocab: int) -> NDArray[np.bool_] | None:
    if request.sampling.allowed_token_ids is None:
        return None
    disallowed = np.ones(vocab, np.bool_)
    disallowed[list(request.sampling.allowed_token_ids)] = False
    return disallowed


def _unpack_mask(mask: bytes, vocab: int) -> NDArray[np.bool_]:
    # Padded here: unpackbits with a count leaves uninitialized memory if the mask is empty.
    packed = np.frombuffer(mask.ljust(-(-vocab // 8), b"\0"), np.uint8)
    return np.unpackbits(packed, count=vocab, bitorder="little").view(np.bool_)
