"""The size of an answer in tokens, also if its engine does not report them."""

from __future__ import annotations

from operator import ne

from .events import (
    TEXT_DELTAS,
    ChoiceFinished,
    Event,
    Finished,
    ToolCallDelta,
    ToolCallStart,
)

CHARACTERS_PER_TOKEN = 4
"""Characters of a token in ordinary text, rounded down, for estimates."""
MAX_CHARACTERS_PER_TOKEN = 8
"""More characters than this per token are not possible in varied text as a whole."""
LONGEST_WORD = 24
"""Characters of a long word that is one token: a short answer may consist of it."""
LONGEST_RUN = 128
"""Characters of the longest tokens: vocabularies have runs of up to 128 spaces."""
_PIECES = 16
"""Pieces of text whose characters are compared at once."""


class AnswerSize:
    """Adds up the size of an answer's events.

    A count that the engine reports is believed if the text can have so few tokens.
    Otherwise the text's least number of tokens counts: a server that reports too few
    must not let its callers exceed their budgets. Runs of one character, such as lines
    and indentation, are few tokens, so they count little.

    tokens: tokens that events carried.
    characters: characters of text, reasoning, refusals and calls.
    """

    __slots__ = ("_last", "_pieces", "_reported", "_varied", "characters", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.characters = 0
        # The characters that differ from the one before them, without the pieces that
        # have not been compared yet: comparing many at once costs less.
        self._varied = 0
        self._pieces: list[str] = []
        self._last = "\0"
        self._reported: int | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, TEXT_DELTAS):
            text = event.text
        elif isinstance(event, ToolCallDelta):
            text = event.arguments
        elif isinstance(event, ToolCallStart):
            text = event.name
        elif isinstance(event, ChoiceFinished):
            text = ""
        else:
            if isinstance(event, Finished):
                self._reported = event.usage.completion
            return
        self.tokens += len(event.tokens)
        if text:
            self.characters += len(text)
            self._pieces.append(text)
            if len(self._pieces) == _PIECES:
                self._count_varied()

    def _count_varied(self) -> int:
        text = "".join(self._pieces)
        self._pieces.clear()
        if text:
            self._varied += sum(map(ne, text, self._last + text[:-1]))
            self._last = text[-1]
        return self._varied

    @property
    def has_all_tokens(self) -> bool:
        """Whether the events carried the tokens of all text. Some servers report them
        for a part only, such as the content without the reasoning.
        """
        return (
            self.tokens * LONGEST_RUN >= self.characters
            and self.tokens * MAX_CHARACTERS_PER_TOKEN >= self._count_varied()
        )

    @property
    def count(self) -> int:
        """Tokens of the answer: those that the engine has reported, and otherwise an
        estimate; never fewer than the text can have.
        """
        if self._reported is not None:
            return max(self._reported, self._count_least())
        if self.has_all_tokens:
            return self.tokens
        return max(self.tokens, -(-self.characters // CHARACTERS_PER_TOKEN))

    def _count_least(self) -> int:
        varied = max(0, self._count_varied() - LONGEST_WORD)
        return max(-(-varied // MAX_CHARACTERS_PER_TOKEN), -(-self.characters // LONGEST_RUN))
