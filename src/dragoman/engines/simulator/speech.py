"""The tokens of one answer, one at a time: from a plan, or improvised within what a grammar allows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.engine import Matcher, TokenRequest
from .draws import Draws
from .lexicon import CLOSING, KINDS, ODD, QUOTE, Lexicon

NOTHING = -1
"""No token: the answer is over."""


class SpeechError(Exception):
    """The answer cannot go on; the message says why."""


class Speech(Protocol):
    @property
    def over(self) -> bool:
        """Nothing may follow what was said, not even a stop token."""
        ...

    def next(self, count: int) -> int:
        """The token that follows the first `count`, or NOTHING. Asked once for each count. Raises SpeechError."""
        ...


class Recital:
    """A plan, then running text, then an end. The way of nearly all answers: it costs next to nothing a token.

    ends_at: after so many tokens comes `end`, a stop token or NOTHING; None goes on for ever.
    """

    __slots__ = ("_end", "_ends_at", "_plan", "_start", "_text")

    over = False

    def __init__(self, plan: Sequence[int], text: Sequence[int], start: int, ends_at: int | None, end: int) -> None:
        self._plan, self._text, self._start = tuple(plan), text, start
        self._ends_at, self._end = ends_at, end

    def next(self, count: int) -> int:
        if count == self._ends_at:
            return self._end
        if count < len(self._plan):
            return self._plan[count]
        return self._text[(self._start + count - len(self._plan)) % len(self._text)]


class Restrictions:
    """Which tokens a request's sampling leaves: `allowed_token_ids`, `bad_words`, and biases that leave no choice."""

    DECISIVE = 50.0
    """A bias that outweighs whatever a model thinks."""

    def __init__(self, request: TokenRequest) -> None:
        sampling = request.sampling
        forced = [id for id, bias in sampling.logit_bias if bias >= self.DECISIVE]
        self.only = (
            frozenset(forced) if forced else sampling.allowed_token_ids and frozenset(sampling.allowed_token_ids)
        )
        banned = {id for id, bias in sampling.logit_bias if bias <= -self.DECISIVE}
        self.banned = banned | {word[0] for word in sampling.bad_words if len(word) == 1}
        self.sequences = [word for word in sampling.bad_words if len(word) > 1]

    def spare(self, tokens: frozenset[int]) -> bool:
        """Whether text of these tokens can never meet one of them."""
        last = {word[-1] for word in self.sequences}
        return self.only is None and tokens.isdisjoint(self.banned) and tokens.isdisjoint(last)

    def apply(self, allowed: NDArray[np.bool_], said: Sequence[int]) -> None:
        """Take away from `allowed` what may not follow what was said."""
        if self.only is not None:
            kept = [id for id in self.only if allowed[id]]
            allowed[:] = False
            allowed[kept] = True
        allowed[list(self.banned)] = False
        for word in self.sequences:
            if tuple(said[1 - len(word) :]) == word[:-1]:
                allowed[word[-1]] = False


class Improvisation:
    """Follows its plan while that is allowed, and otherwise finds a way to an end that is.

    ends_at: as with Recital, where the grammar leaves it open.
    """

    def __init__(
        self,
        request: TokenRequest,
        lexicon: Lexicon,
        draws: Draws,
        plan: Sequence[int],
        *,
        ends_at: int | None = None,
    ) -> None:
        self._request, self._lexicon, self._draws = request, lexicon, draws
        self._matcher: Matcher | None = request.matcher
        self._restrictions = Restrictions(request)
        self._plan, self._ends_at = plan, ends_at
        self._text_at = lexicon.starts[draws.below(len(lexicon.starts))]
        self._said: list[int] = []
        self._structured = False
        self.over = False

    def next(self, count: int) -> int:
        allowed = self._allowed()
        ends = [id for id in self._lexicon.eos if id < len(allowed) and allowed[id]]
        # A grammar that does not let the answer end is in the middle of something.
        self._structured = self._structured or (self._matcher is not None and not ends)
        token = self._choose(count, allowed, ends)
        if token != NOTHING:
            self._said.append(token)
            self._advance(token)
        return token

    def _allowed(self) -> NDArray[np.bool_]:
        size = self._lexicon.vocab_size
        if self._matcher is None:
            allowed = np.ones(size, np.bool_)
        else:
            bits = np.unpackbits(np.frombuffer(self._matcher.mask(), np.uint8), bitorder="little")[:size]
            allowed = np.zeros(size, np.bool_)
            allowed[: len(bits)] = bits
        self._restrictions.apply(allowed, self._said)
        return allowed

    def _choose(self, count: int, allowed: NDArray[np.bool_], ends: list[int]) -> int:
        if count < len(self._plan):
            if allowed[self._plan[count]]:
                return self._plan[count]
            self._plan = self._plan[:count]
        may_end = bool(ends) and count >= self._request.min_tokens
        if may_end and (self._structured or (self._ends_at is not None and count >= self._ends_at)):
            return ends[0] if ends[0] in self._request.stop_token_ids or self._matcher is not None else NOTHING
        allowed[ends] = False
        if not allowed.any():
            return ends[0] if ends else NOTHING
        if self._matcher is None or (ends and not self._structured):
            return self._text_token(count, allowed)
        return self._inner_token(count, allowed)

    def _text_token(self, count: int, allowed: NDArray[np.bool_]) -> int:
        """The next of the running text that is allowed."""
        text = self._lexicon.text
        for _ in range(len(text)):
            token, self._text_at = text[self._text_at], (self._text_at + 1) % len(text)
            if allowed[token]:
                return token
        return self._draw(count, np.flatnonzero(allowed))

    def _inner_token(self, count: int, allowed: NDArray[np.bool_]) -> int:
        """Within something that has to be closed. Where nearly all is allowed that is a string: words, and its end."""
        ids: NDArray[np.int64] = np.flatnonzero(allowed)
        if 2 * len(ids) < len(allowed):
            return self._draw(count, ids)
        quotes: NDArray[np.int64] = ids[self._lexicon.kinds[ids] == QUOTE]
        if len(quotes) and self._draws.unit() < 0.2 + count / 200:
            return int(quotes[self._draws.below(len(quotes))])
        return self._text_token(count, allowed)

    def _draw(self, count: int, ids: NDArray[np.int64]) -> int:
        """First a kind, then one of it. The longer the answer, the likelier that what is open is closed."""
        kinds = self._lexicon.kinds[ids]
        present: list[int] = np.bincount(kinds, minlength=len(KINDS)).tolist()
        weights = [weight if there else 0.0 for weight, there in zip(KINDS, present, strict=True)]
        weights[CLOSING] *= 1 + count / 12
        weights[QUOTE] *= 1 + count / 12
        place = self._draws.unit() * sum(weights)
        kind = next((kind for kind, edge in enumerate(accumulate(weights)) if place < edge), ODD)
        those: NDArray[np.int64] = ids[kinds == kind]
        return int(those[self._draws.below(len(those))])

    def _advance(self, token: int) -> None:
        if self._matcher is None or token in self._lexicon.eos:
            return
        if not self._matcher.advance(token):
            raise SpeechError("The grammar of this request failed.")
        self.over = self._matcher.finished
