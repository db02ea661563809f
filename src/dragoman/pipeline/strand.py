"""One choice on its way from raw text to canonical events: its parsers, then its stop strings."""

from __future__ import annotations

from ..core.events import ChoiceFinished, Event, ReasoningDelta, TextDelta, sampled
from ..core.syntax import Parser
from .stops import StopStage


class Strand:
    """Raw events of one choice in, canonical ones out. Counts what usage needs."""

    __slots__ = ("_parser", "_stops", "finished", "reasoning", "tokens")

    def __init__(self, parser: Parser | None, stops: StopStage | None) -> None:
        self._parser, self._stops = parser, stops
        self.finished = False
        self.tokens = 0
        self.reasoning = 0

    @property
    def matched(self) -> bool:
        """A stop string was found: the choice wants to be closed."""
        return self._stops is not None and self._stops.matched is not None and not self.finished

    def feed(self, event: Event) -> list[Event]:
        out = [event] if self._parser is None else self._parser.feed(event)
        if self._stops is not None:
            out = [after for before in out for after in self._stops.feed(before)]
        for made in out:
            if type(made) is TextDelta:
                self.tokens += len(made.tokens)
            else:
                self._count(made)
        return out

    def _count(self, event: Event) -> None:
        tokens = len(sampled(event))
        self.tokens += tokens
        if isinstance(event, ReasoningDelta):
            self.reasoning += sum(not token.markup for token in event.tokens)
        elif isinstance(event, ChoiceFinished):
            self.finished = True
