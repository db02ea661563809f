"""The size of an answer in tokens, also if its engine does not report them."""

from __future__ import annotations

from .events import (
    Event,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    get_answer_tokens,
)

CHARACTERS_PER_TOKEN = 4
"""Characters of a token in ordinary text, rounded down, for estimates."""
MAX_CHARACTERS_PER_TOKEN = 8
"""A count of fewer tokens than one for so many characters cannot be the whole count."""


class AnswerSize:
    """Adds up the size of an answer's events.

    tokens: tokens that events carried.
    characters: characters of text, reasoning, refusals and calls.
    """

    __slots__ = ("_reported", "characters", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.characters = 0
        self._reported: int | None = None

    def add(self, event: Event) -> None:
        self.tokens += len(get_answer_tokens(event))
        match event:
            case TextDelta() | ReasoningDelta() | RefusalDelta():
                self.characters += len(event.text)
            case ToolCallDelta():
                self.characters += len(event.arguments)
            case ToolCallStart():
                self.characters += len(event.name)
            case Finished(usage):
                self._reported = usage.completion
            case _:
                pass

    def add_batch(self, events: list[Event]) -> None:
        for event in events:
            self.add(event)

    @property
    def has_all_tokens(self) -> bool:
        """Whether the events carried the tokens of all text. Some servers report them
        for a part only, such as the content without the reasoning.
        """
        return self.tokens * MAX_CHARACTERS_PER_TOKEN >= self.characters

    @property
    def count(self) -> int:
        """Tokens of the answer: those that the engine has reported, and otherwise an
        estimate; never fewer than one for `MAX_CHARACTERS_PER_TOKEN` characters.
        """
        least = -(-self.characters // MAX_CHARACTERS_PER_TOKEN)
        if self._reported is not None:
            return max(self._reported, least)
        if self.has_all_tokens:
            return self.tokens
        return max(self.tokens, -(-self.characters // CHARACTERS_PER_TOKEN))
