"""Which tokens a sequence may have: its grammar, its bad words, the ids it was given. Pure.

llama.cpp samples freely, or by a grammar of its own; what it says is held against this, token by token. A token that
may not come is not said: the next one is asked for under a bias that leaves the allowed ones alone.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ...core.engine import TokenRequest

Bias = tuple[int, float | bool]

_LIFT = 200.0
"""What makes a token certain to come before others: e^200 times as likely, and still exact to 2^-16."""


class Guard:
    """stops: ids that end the answer; they may not come before `min_tokens`."""

    def __init__(self, request: TokenRequest, vocab: int, eog: frozenset[int]) -> None:
        self._request, self._vocab = request, vocab
        self._allowed = request.sampling.allowed_token_ids
        self._matcher = request.matcher
        self._early = frozenset(request.stop_token_ids) | eog
        self._never = eog - request.stop_token_ids

    @property
    def finished(self) -> bool:
        """Nothing may follow but the end."""
        return self._matcher is not None and self._matcher.finished

    def allows(self, token: int, said: list[int]) -> bool:
        """said: what has been said so far."""
        if token in self._forbidden(said) or (self._allowed is not None and token not in self._allowed):
            return False
        return self._matcher is None or self._matcher.allows(token)

    def take(self, token: int) -> bool:
        """It has been said. False where the grammar is broken."""
        ends = token in self._request.stop_token_ids
        return self._matcher is None or ends or self._matcher.advance(token)

    def bias(self, said: list[int]) -> tuple[Bias, ...]:
        """What a whole completion is asked under: the client's wishes, and what is never allowed anyhow."""
        wished = self._request.sampling.logit_bias
        if self._allowed is not None:
            return (*wished, *((id, _LIFT) for id in self._allowed))
        words = {word[0] for word in self._request.sampling.bad_words if len(word) == 1}
        return (*wished, *((id, False) for id in sorted(words | self._ends(said))))

    def mask(self, said: list[int]) -> tuple[Bias, ...] | None:
        """What one token is asked under: none but the allowed ones can come. None where there are none."""
        open = self._open(said)
        if not open.any():
            return None
        wished = tuple((id, bias) for id, bias in self._request.sampling.logit_bias if open[id])
        if 2 * int(open.sum()) > len(open):
            return (*wished, *((int(id), False) for id in np.flatnonzero(~open)))
        return (*wished, *((int(id), _LIFT) for id in np.flatnonzero(open)))

    def _open(self, said: list[int]) -> NDArray[np.bool_]:
        open = np.ones(self._vocab, np.bool_)
        if self._matcher is not None:
            open &= _unpacked(self._matcher.mask(), self._vocab)
        if self._allowed is not None:
            among = np.zeros(self._vocab, np.bool_)
            among[list(self._allowed)] = True
            open &= among
        open[[id for id in self._forbidden(said) if id < self._vocab]] = False
        return open

    def _forbidden(self, said: list[int]) -> Collection[int]:
        words = self._request.sampling.bad_words
        ending = {word[-1] for word in words if word and _ends_with(said, word[:-1])} if words else frozenset[int]()
        return self._ends(said) | ending

    def _ends(self, said: list[int]) -> frozenset[int]:
        return self._early if len(said) < self._request.min_tokens else self._never


def _ends_with(said: list[int], start: tuple[int, ...]) -> bool:
    return len(said) >= len(start) and tuple(said[len(said) - len(start) :]) == start


def _unpacked(mask: bytes, vocab: int) -> NDArray[np.bool_]:
    packed = np.frombuffer(mask.ljust(-(-vocab // 8), b"\0"), np.uint8)
    return np.unpackbits(packed, count=vocab, bitorder="little").view(np.bool_)
