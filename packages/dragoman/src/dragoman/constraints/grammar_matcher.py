"""Matches a response, token by token, against a compiled grammar."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from ..core.errors import RequestError
from ..core.matcher import Matcher
from .closing_matcher import ClosingMatcher
from .grammar_panics import build_grammar_failure, convert_grammar_panics

if TYPE_CHECKING:
    import llguidance

    from .ending_search import EndingSearch

    Tools = tuple[llguidance.LLTokenizer, llguidance.LLParserLimits]
    """The vocabulary in llguidance's form, and the limits of each parser step."""


class CompiledGrammar:
    """A compiled grammar.

    text: the grammar in llguidance's syntax.
    warnings: the parts that are not enforced.
    """

    def __init__(
        self, text: str, initial_matcher: llguidance.LLMatcher, warnings: tuple[str, ...]
    ) -> None:
        self.text = text
        self.warnings = warnings
        self._initial_matcher = initial_matcher
        self._lock = Lock()

    def build_matcher(self) -> Matcher:
        """Build a matcher for a new response. Takes microseconds."""
        with self._lock, convert_grammar_panics():
            # A copy does not compile the grammar again.
            return _Matcher(self._initial_matcher.deep_copy())

    def build_closing_matcher(self, endings: EndingSearch, max_tokens: int) -> Matcher:
        """Build a matcher whose answer ends legally within this many tokens, if
        `endings` finds an ending.
        """
        with self._lock, convert_grammar_panics():
            inner = self._initial_matcher.deep_copy()
        return ClosingMatcher(_Matcher(inner), inner, endings, max_tokens)


class _Matcher:
    """See `core.engine.Matcher`. `mask` raises RequestError where no token is possible
    or a limit is exceeded.
    """

    def __init__(self, inner: llguidance.LLMatcher) -> None:
        self._inner = inner

    def mask(self) -> bytes:
        with convert_grammar_panics():
            mask = self._inner.compute_bitmask()
            if (
                self._inner.is_error()
            ):  # At a dead end the mask would allow EOS, as if the response were complete.
                if self._inner.get_error().startswith("panic"):
                    raise build_grammar_failure()
                raise RequestError(
                    f"The constraint cannot be satisfied: {find_reason(self._inner)}"
                )
            return mask

    def allows(self, token: int) -> bool:
        with convert_grammar_panics():
            return self._inner.validate_tokens([token]) == 1

    def advance(self, token: int) -> bool:
        with convert_grammar_panics():
            return self._inner.consume_token(token)

    def replace(self, token: int) -> int:
        return token

    @property
    def finished(self) -> bool:
        return self._inner.is_stopped() and not self._inner.is_error()

    @property
    def was_closed(self) -> bool:
        return False


def find_reason(matcher: llguidance.LLMatcher) -> str:
    """Return the error message without positions, which refer to the generated grammar,
    not to the client's text.
    """
    lines = matcher.get_error().partition("\n<")[0].splitlines()
    relevant_lines = [line for line in lines if " | " not in line and line.strip(" ^")]
    text = " ".join(line.strip() for line in relevant_lines)
    location, colon, message = text.partition("): ")
    if colon and (location.startswith("at ") or location[:1].isdigit()):
        text = message
    return text.removeprefix("failed to compile JSON schema: ")[:1000]
