"""Stop strings, as the last stage of a choice: they end its text, never its reasoning or a tool call's JSON."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..core.events import ChoiceFinished, Event, FinishReason, TextDelta, sampled
from ..parsers.base import Buffer
from ..parsers.marks import Marks


class StopStrings:
    """Ends a text at the first stop string in it.

    The first is the one that is complete first; of several that end at the same character the longest. This does
    not depend on how the text is cut. Text is held back only while it may be the beginning of a stop string.
    stops: none empty. include: the stop string itself stays in the text.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._marks = Marks(stops) if stops else None
        self._include = include
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that was found; from then on nothing is released."""
        return self._matched

    def passes(self, text: str) -> bool:
        """Whether this text can be released unread: nothing is held, and no stop string begins in it."""
        return not self._state and self._matched is None and not (self._marks and self._marks.occurs(text))

    def feed(self, text: str, *, ignore: bool = False) -> str:
        """What may be released. ignore: a stop string that is completed by this text does not count."""
        marks, at = self._marks, 0
        if marks is None:
            return text
        if self._matched is not None:
            return ""
        while True:
            at, self._state = marks.search(text, at, self._state)
            if at < 0:
                return self._release(text, marks.held[self._state])
            if not ignore:
                return self._match(text[:at], marks.ending[self._state])

    def _release(self, text: str, hold: int) -> str:
        text = self._held + text
        released = len(text) - hold
        self._held = text[released:]
        return text[:released]

    def _match(self, text: str, length: int) -> str:
        text, self._held = self._held + text, ""
        before = len(text) - length
        self._matched = text[before:]
        return text if self._include else text[:before]

    def close(self) -> str:
        """What is still held back."""
        text, self._held = self._held, ""
        return text


class StopStage:
    """One choice, from when its parsers have told text from the rest.

    The stop is removed from the text unless include is set. A stop that completes within the first min_tokens
    tokens does not count (as in vLLM). After a match only ChoiceFinished comes out, with all tokens that were
    still on their way.
    """

    def __init__(self, choice: int, stops: Sequence[str], *, include: bool, min_tokens: int) -> None:
        self._choice = choice
        self._make = lambda: StopStrings(stops, include=include)
        self._stops = self._make()
        self._min_tokens = min_tokens
        self._count = 0
        self._held = Buffer()
        self.matched: str | None = None

    def feed(self, event: Event) -> list[Event]:
        if isinstance(event, ChoiceFinished):
            return self._close(event)
        tokens = sampled(event)
        self._count += len(tokens)
        if self.matched is not None:
            self._held.push("", tokens)
            return []
        if isinstance(event, TextDelta):
            return self._text(event)
        return [*self._flush(), event]

    def _text(self, event: TextDelta) -> list[Event]:
        if self._held.is_empty and self._stops.passes(event.text):
            return [event]
        self._held.push(event.text, event.tokens)
        released = self._stops.feed(event.text, ignore=self._count <= self._min_tokens)
        self.matched = self._stops.matched
        if not released:
            return []
        return [TextDelta(event.choice, released, self._held.take(len(released))[1])]

    def _flush(self) -> list[Event]:
        """Text ends here: what was held back for a stop that may have been coming is text after all."""
        released = self._stops.close()
        self._stops = self._make()
        tokens = self._held.take(len(self._held))[1]
        if not released and not tokens:
            return []
        return [TextDelta(self._choice, released, tokens)]

    def _close(self, event: ChoiceFinished) -> list[Event]:
        if self.matched is not None:
            tail = self._held.take(len(self._held))[1] + event.tokens
            return [replace(event, reason=FinishReason.STOP, stop=self.matched, tokens=tail)]
        return [*self._flush(), event]
