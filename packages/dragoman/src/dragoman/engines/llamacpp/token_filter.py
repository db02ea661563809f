"""The token restrictions of one sequence over llama.cpp, which samples without them.
Does no I/O.

llama.cpp samples without constraints or by its own grammar; every sampled token is
checked here. A rejected token is not delivered: the next completion samples again,
under a bias that excludes all tokens that are not allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np

from ...core.token_engine import TokenRequest

Bias = tuple[int, float | bool]

FORCING_BIAS = 200.0
"""Bias that dominates all others, by a factor of e^200. It is small enough for logits
to stay exact to 2^-16.
"""


class PromptPenaltyBias:
    """Offsets the penalties of the prompt's tokens: llama.cpp counts them, whereas in
    vLLM only sampled tokens count.

    A frequency penalty grows with each occurrence, so the offset is constant. A
    presence penalty is the same for any number of occurrences, so its offset ends when
    the token is sampled. Exact only without a repetition penalty, which scales the
    logits after the bias.
    """

    def __init__(self, request: TokenRequest) -> None:
        sampling = request.sampling
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        self._counts: Counter[int] = Counter()
        if self._frequency or self._presence:
            prompt = list(request.prompt)
            for image in reversed(request.images):
                del prompt[image.begin : image.end]  # llama.cpp counts no images
            self._counts.update(prompt)
        self._unsampled = set(self._counts) if self._presence else set[int]()

    def build(self) -> tuple[Bias, ...]:
        return tuple(
            (id, count * self._frequency + (self._presence if id in self._unsampled else 0.0))
            for id, count in self._counts.items()
            if self._frequency or id in self._unsampled
        )

    def observe(self, token: int) -> bool:
        """Record a sampled token. Returns whether the bias has changed."""
        has_changed = token in self._unsampled
        self._unsampled.discard(token)
        return has_changed


class TokenFilter:
    """The restrictions of one request. Stop ids are rejected before `min_tokens`."""

    def __init__(self, request: TokenRequest, vocab: int, eog: frozenset[int]) -> None:
        self._request = request
        self._vocab = vocab
        self._allowed = request.sampling.allowed_token_ids
        self._matcher = request.matcher
        self._early_stop_ids = frozenset(request.stop_token_ids) | eog
        self._forbidden_stop_ids = eog - request.stop_token_ids

    @property
    def is_finished(self) -> bool:
        """Whether only the end may follow."""
        return self._matcher is not None and self._matcher.finished

    def is_allowed(self, token: int, output: list[int]) -> bool:
        """Whether the token is allowed. output: the tokens so far."""
        if token in self._find_forbidden(output) or (
            self._allowed is not None and token not in self._allowed
        ):
            return False
        return self.is_in_grammar(token)

    def is_in_grammar(self, token: int) -> bool:
        """Whether the grammar allows the token."""
        return self._matcher is None or self._matcher.allows(token)

    def accept(self, token: int) -> bool:
        """Advance over a delivered token. Returns False if the grammar is broken."""
        is_stop = token in self._request.stop_token_ids
        return self._matcher is None or is_stop or self._matcher.advance(token)

    def build_bias(self, output: list[int]) -> tuple[Bias, ...]:
        """Build the bias of a whole completion: the client's biases, and tokens that
        are never allowed.
        """
        client_bias = self._request.sampling.logit_bias
        if self._allowed is not None:
            return (*client_bias, *((id, FORCING_BIAS) for id in self._allowed))
        bad_ids = {word[0] for word in self._request.sampling.bad_words if len(word) == 1}
        return (
            *client_bias,
            *((id, False) for id in sorted(bad_ids | self._find_blocked_stop_ids(output))),
        )

    def build_mask(self, output: list[int]) -> tuple[Bias, ...] | None:
        """Build the bias of a single token that excludes all but the allowed ones. None
        if none is allowed.
        """
        allowed = np.ones(self._vocab, np.bool_)
        if self._matcher is not None:
            packed = np.frombuffer(
                self._matcher.mask().ljust(-(-self._vocab // 8), b"\0"), np.uint8
            )
            allowed &= np.unpackbits(packed, count=self._vocab, bitorder="little").view(np.bool_)
        if self._allowed is not None:
            listed = np.zeros(self._vocab, np.bool_)
            listed[list(self._allowed)] = True
            allowed &= listed
        allowed[[id for id in self._find_forbidden(output) if id < self._vocab]] = False
        if not allowed.any():
            return None
        client_bias = tuple(
            (id, bias) for id, bias in self._request.sampling.logit_bias if allowed[id]
        )
        # Both lists have the same effect. The shorter one is sent, since each entry is
        # JSON that llama.cpp parses.
        if 2 * int(allowed.sum()) > len(allowed):
            return (*client_bias, *((int(id), False) for id in np.flatnonzero(~allowed)))
        return (*client_bias, *((int(id), FORCING_BIAS) for id in np.flatnonzero(allowed)))

    def _find_forbidden(self, output: list[int]) -> Collection[int]:
        blocked_ids = self._find_blocked_stop_ids(output)
        words = self._request.sampling.bad_words
        if not words:
            return blocked_ids
        # The last token of each bad word whose other tokens end the output so far.
        size = len(output)
        starts = [(word[:-1], word[-1]) for word in words if word]
        return blocked_ids | {
            last
            for start, last in starts
            if size >= len(start) and tuple(output[size - len(start) :]) == start
        }

    def _find_blocked_stop_ids(self, output: list[int]) -> frozenset[int]:
        return (
            self._early_stop_ids
            if len(output) < self._request.min_tokens
            else self._forbidden_stop_ids
        )
