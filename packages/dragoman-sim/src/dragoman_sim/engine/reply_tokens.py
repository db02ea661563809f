"""The tokens of one reply, from a plan or generated within a grammar."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.core.matcher import Matcher
from dragoman.core.request import Sampling
from dragoman.core.token_engine import TokenLogprob, TokenRequest

from .keyed_random import KeyedRandom
from .lexicon import CLOSING, KIND_WEIGHTS, ODD, QUOTE, Lexicon

_LOGPROB_STRIDE = 7919
"""A prime stride, so that alternatives visit every id of (nearly) every vocabulary
before any id repeats.
"""
NO_TOKEN = -1
"""No token: the reply has ended."""


class ReplyTokensError(Exception):
    """The reply cannot continue; the message gives the reason."""


class ReplyTokens(Protocol):
    @property
    def is_finished(self) -> bool:
        """Whether no token may follow, not even a stop token."""
        ...

    def next_token(self, count: int) -> int:
        """Return the token after the first `count`, or NO_TOKEN. Called once per token.
        Raises ReplyTokensError.
        """
        ...


class PlannedTokens:
    """A plan, then running text, then an end. Used by nearly all replies, since its
    cost per token is minimal.

    start: index in `text` at which the running text begins.
    ends_at: number of tokens before `end`; None means that the reply never ends.
    end: a stop token, or NO_TOKEN.
    """

    __slots__ = ("_end", "_ends_at", "_origin", "_plan", "_text")

    is_finished = False

    def __init__(
        self, plan: Sequence[int], text: Sequence[int], start: int, ends_at: int | None, end: int
    ) -> None:
        self._plan = tuple(plan)
        self._text = text
        # The index in `text` of the reply's first token, if it were part of the text.
        self._origin = start - len(self._plan)
        self._ends_at = ends_at
        self._end = end

    def next_token(self, count: int) -> int:
        if count == self._ends_at:
            return self._end
        if count < len(self._plan):
            return self._plan[count]
        text = self._text
        return text[(self._origin + count) % len(text)]


class TokenRestrictions:
    """The token restrictions of a request: `allowed_token_ids`, `bad_words`, and
    decisive entries of `logit_bias`.
    """

    DECISIVE_BIAS = 50.0
    """A bias of at least this magnitude is taken to outweigh any logit."""

    def __init__(self, sampling: Sampling) -> None:
        forced = [id for id, bias in sampling.logit_bias if bias >= self.DECISIVE_BIAS]
        self.allowed = (
            frozenset(forced)
            if forced
            else sampling.allowed_token_ids and frozenset(sampling.allowed_token_ids)
        )
        banned = {id for id, bias in sampling.logit_bias if bias <= -self.DECISIVE_BIAS}
        self.banned = banned | {word[0] for word in sampling.bad_words if len(word) == 1}
        self.bad_words = [word for word in sampling.bad_words if len(word) > 1]

    def allow_all(self, tokens: Collection[int]) -> bool:
        """Whether none of these tokens is restricted in any context."""
        # A bad word of several tokens is avoided by never sampling its last one.
        restricted = self.banned | {word[-1] for word in self.bad_words}
        return self.allowed is None and restricted.isdisjoint(tokens)

    def apply(self, allowed: NDArray[np.bool_], output: Sequence[int]) -> None:
        """Clear the restricted tokens in `allowed`."""
        if self.allowed is not None:
            remaining = [id for id in self.allowed if allowed[id]]
            allowed[:] = False
            allowed[remaining] = True
        allowed[list(self.banned)] = False
        for word in self.bad_words:
            if tuple(output[1 - len(word) :]) == word[:-1]:
                allowed[word[-1]] = False


class ConstrainedTokens:
    """Tokens that follow a plan while grammar and restrictions allow it, then sampled
    ones that lead to a valid end.

    ends_at: number of tokens after which the reply ends if it can; None sets no end.
    """

    def __init__(
        self,
        request: TokenRequest,
        lexicon: Lexicon,
        rng: KeyedRandom,
        plan: Sequence[int],
        *,
        ends_at: int | None = None,
    ) -> None:
        self._request = request
        self._lexicon = lexicon
        self._rng = rng
        self._matcher: Matcher | None = request.matcher
        self._restrictions = TokenRestrictions(request.sampling)
        self._plan = plan
        self._ends_at = ends_at
        self._text_position = lexicon.starts[rng.randbelow(len(lexicon.starts))]
        self._output: list[int] = []
        self._inside_structure = False
        self.is_finished = False

    def next_token(self, count: int) -> int:
        size = self._lexicon.vocab_size
        matcher = self._matcher
        if matcher is None:
            allowed = np.ones(size, np.bool_)
        else:
            bits = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little")[:size]
            allowed = np.zeros(size, np.bool_)
            allowed[: len(bits)] = bits
        self._restrictions.apply(allowed, self._output)
        eos_ids = [id for id in self._lexicon.eos if id < len(allowed) and allowed[id]]
        # A grammar that does not allow an end is inside a structure.
        self._inside_structure = self._inside_structure or (matcher is not None and not eos_ids)
        token = self._choose(count, allowed, eos_ids)
        if token == NO_TOKEN:
            return token
        if matcher is not None:
            # Near max_tokens the matcher may replace the token with one that closes the
            # output.
            token = matcher.replace(token)
        self._output.append(token)
        if matcher is not None and token not in self._lexicon.eos:
            if not matcher.advance(token):
                raise ReplyTokensError("The grammar of this request failed.")
            self.is_finished = matcher.finished
        return token

    def _choose(self, count: int, allowed: NDArray[np.bool_], eos_ids: list[int]) -> int:
        if count < len(self._plan):
            if allowed[self._plan[count]]:
                return self._plan[count]
            # The rest of a rejected plan would not fit the tokens that are sampled
            # instead.
            self._plan = self._plan[:count]
        may_end = bool(eos_ids) and count >= self._request.min_tokens
        if may_end and (
            self._inside_structure or (self._ends_at is not None and count >= self._ends_at)
        ):
            return (
                eos_ids[0]
                if eos_ids[0] in self._request.stop_token_ids or self._matcher is not None
                else NO_TOKEN
            )
        # It is too early to end: an end token is sampled below only if the grammar
        # allows nothing else.
        allowed[eos_ids] = False
        if not allowed.any():
            return eos_ids[0] if eos_ids else NO_TOKEN
        if self._matcher is not None and (self._inside_structure or not eos_ids):
            ids: NDArray[np.int64] = np.flatnonzero(allowed)
            if 2 * len(ids) < len(allowed):
                return self._sample_by_kind(count, ids)
            # If most tokens are allowed inside a structure, it is a string: words, then
            # its closing quote.
            quotes: NDArray[np.int64] = ids[self._lexicon.kinds[ids] == QUOTE]
            # The probability grows with the reply's length and is 1 from 160 tokens on,
            # so that every string ends.
            if len(quotes) and self._rng.random() < 0.2 + count / 200:
                return int(quotes[self._rng.randbelow(len(quotes))])
        return self._choose_text_token(count, allowed)

    def _choose_text_token(self, count: int, allowed: NDArray[np.bool_]) -> int:
        """Return the next allowed token of the running text."""
        text = self._lexicon.text
        for _ in range(len(text)):
            token = text[self._text_position]
            self._text_position = (self._text_position + 1) % len(text)
            if allowed[token]:
                return token
        return self._sample_by_kind(count, np.flatnonzero(allowed))

    def _sample_by_kind(self, count: int, ids: NDArray[np.int64]) -> int:
        """Sample a kind, then a token of that kind. The longer the reply, the likelier
        closing tokens are.
        """
        kinds = self._lexicon.kinds[ids]
        present: list[int] = np.bincount(kinds, minlength=len(KIND_WEIGHTS)).tolist()
        weights = [
            weight if count_of_kind else 0.0
            for weight, count_of_kind in zip(KIND_WEIGHTS, present, strict=True)
        ]
        # Otherwise an open array or string could continue until max_tokens.
        weights[CLOSING] *= 1 + count / 12
        weights[QUOTE] *= 1 + count / 12
        threshold = self._rng.random() * sum(weights)
        kind = next(
            (kind for kind, edge in enumerate(accumulate(weights)) if threshold < edge), ODD
        )
        candidates: NDArray[np.int64] = ids[kinds == kind]
        return int(candidates[self._rng.randbelow(len(candidates))])


def fake_logprob(token: int, alternatives: int, vocab_size: int, rng: KeyedRandom) -> TokenLogprob:
    """Build a fake logprob: the token has a probability of at least 0.5; the
    alternatives share the rest.

    All probabilities sum to less than 1, and `top` is in descending order.
    """
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
        # The stride visits other ids that differ from each other and from the token,
        # without a set of used ids.
        other = (token + 1 + (start + rank * _LOGPROB_STRIDE) % others) % vocab_size
        # Up to the whole vocabulary may be requested, and after about a thousand
        # halvings the share is 0, which has no logarithm.
        top.append((other, math.log(max(share, 1e-30))))
    return TokenLogprob(logprob, 1, tuple(top))
