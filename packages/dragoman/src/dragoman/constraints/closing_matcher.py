"""Ends a constrained answer within its token limit: the last tokens are a short legal
ending.

A sampled token is replaced only if no known ending would fit into the limit after it.
Until then the answer is the same as without the option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.matcher import Matcher
from .grammar_panics import convert_grammar_panics

if TYPE_CHECKING:
    import llguidance

    from .ending_search import Ending, EndingSearch


_MAX_FAILURES = 2
"""Failed searches after which the answer is no longer checked."""


_WINDOW = 64
"""Minimum number of last tokens before the limit that are all checked."""


class ClosingMatcher:
    """A matcher that ends the answer legally within `max_tokens`, if the search finds
    an ending.

    was_closed: sampled tokens were replaced to end the answer.
    """

    def __init__(
        self, matcher: Matcher, state: llguidance.LLMatcher, search: EndingSearch, max_tokens: int
    ) -> None:
        self._matcher = matcher
        self._state = state
        self._search = search
        self._left = max_tokens
        self._ending: Ending | None = None
        """A legal ending from here; None if it is not known."""
        self._next: tuple[int, Ending] | None = None
        """A token that was checked, and the ending after it."""
        self._checks_from = max_tokens
        """Remaining tokens at which the next search for an ending runs."""
        self._checks = False
        """Whether every sampled token is checked."""
        self._failures = 0
        self.was_closed = False

    def mask(self) -> bytes:
        mask = self._matcher.mask()
        if not self.was_closed:
            return mask
        # A mask with one allowed token: engines sample through it, so they need no
        # other interface for the ending.
        byte, bit = divmod(self._closing_token, 8)
        only = bytearray(len(mask))
        only[byte] = 1 << bit
        return bytes(only)

    def allows(self, token: int) -> bool:
        return self._matcher.allows(token) and self.replace(token) == token

    def advance(self, token: int) -> bool:
        if not self._matcher.advance(token):
            return False
        self._left -= 1
        checked = self._next
        self._next = None
        if checked is not None and checked[0] == token:
            self._ending = checked[1]
        elif self._ending and self._ending[0] == token:
            self._ending = self._ending[1:]
        else:
            self._ending = None
        return True

    @property
    def finished(self) -> bool:
        return self._matcher.finished

    def replace(self, token: int) -> int:
        """Return the token to append instead of a sampled one: another one if the
        answer has to be closed now.
        """
        if self.was_closed:
            return self._closing_token
        with convert_grammar_panics():
            return self._choose_token(token)

    def _choose_token(self, token: int) -> int:
        # Until every token is checked, an ending is searched for each time the
        # remaining tokens have halved.
        if not self._checks and self._left <= self._checks_from:
            ending = self._ending = self._search.find(self._state, self._left)
            self._checks = ending is None or self._left <= _WINDOW + 4 * len(ending)
            self._checks_from = max(self._left // 2, _WINDOW + 4 * len(ending or ()))
        if not self._checks:
            return token
        if self._ending is None:
            self._ending = self._search.find(self._state, self._left)
            if self._ending is None:
                self._ending = self._search.find_shortest(self._state, self._left)
            if self._ending is None:
                # No ending fits: the answer is truncated, as it would be without the
                # option.
                self._failures += 1
                self._checks = self._failures < _MAX_FAILURES
                self._checks_from = self._left if self._checks else 0
                return token
        if self._ending and token == self._ending[0]:
            return token
        following = self._find_ending_after(token, self._ending)
        if following is not None:
            self._next = (token, following)
            return token
        self.was_closed = True
        self._ending = (
            self._search.find_shortest(self._state, len(self._ending) - 1) or self._ending
        )
        return self._closing_token

    def _find_ending_after(self, token: int, ending: Ending) -> Ending | None:
        """Find an ending that fits into the remaining tokens after this one; None if
        none is found.
        """
        state = self._state.deep_copy()
        if not state.consume_token(token):
            return ending  # The engine reports a token that the grammar does not allow.
        if state.is_accepting():
            return ()
        left = self._left - 1
        # Mostly, as inside a string, the previous ending is still valid. Otherwise the
        # token was often its beginning.
        for candidate in (ending, ending[1:], ending[2:]):
            if candidate and len(candidate) <= left and _is_complete_after(state, candidate):
                return candidate
        new_ending = self._search.find(state, left)
        return self._search.find_shortest(state, left) if new_ending is None else new_ending

    @property
    def _closing_token(self) -> int:
        return self._ending[0] if self._ending else self._search.eos[0]


def _is_complete_after(state: llguidance.LLMatcher, ending: Ending) -> bool:
    """Whether the answer is complete after these tokens. Does not change the state."""
    if state.validate_tokens(list(ending)) < len(ending):
        return False
    count = state.try_consume_tokens(list(ending))
    is_end = count == len(ending) and state.is_accepting()
    state.rollback(count)
    return is_end
