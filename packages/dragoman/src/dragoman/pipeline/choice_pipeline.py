"""The event pipeline of one choice of a response: its parser, then its stop strings."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.events import (
    ChoiceFinished,
    Event,
    ReasoningDelta,
    TextDelta,
    get_answer_tokens,
)
from ..core.syntax import Parser
from .stop_strings import StopStage


class ChoicePipeline:
    """Converts the raw events of one choice into canonical ones, and counts the tokens
    that usage reports.

    has_matched_stop: whether a stop string matched, so that the choice should be
        closed.
    is_transparent: whether no parser and no stop string is left, so that `feed` only
        counts the tokens of a text. A caller may count them in `n_tokens` itself.
    stops: the stop strings that can end the choice.
    """

    __slots__ = (
        "_parser",
        "has_finished",
        "has_matched_stop",
        "is_transparent",
        "n_reasoning_tokens",
        "n_tokens",
        "stops",
        "warnings",
    )

    def __init__(self, parser: Parser | None, stops: StopStage | None) -> None:
        self._parser = parser
        self.stops = stops
        self.has_finished = False
        self.has_matched_stop = False
        self.warnings: tuple[str, ...] = ()
        """Warnings of the parser, when the choice has finished."""
        self.n_tokens = 0
        self.n_reasoning_tokens = 0
        self.is_transparent = parser is None and stops is None

    def feed(self, event: Event) -> list[Event]:
        parser = self._parser
        if parser is None:
            events = [event]
        else:
            events = parser.feed(event)
            if parser.is_done:
                self._parser = None
                self.is_transparent = self.stops is None
        if self.stops is not None:
            events = [
                stopped_event
                for parsed_event in events
                for stopped_event in self.stops.feed(parsed_event)
            ]
            self.has_matched_stop = self.stops.matched is not None
        for emitted in events:
            if type(emitted) is TextDelta:
                self.n_tokens += len(emitted.tokens)
            elif type(emitted) is ChoiceFinished:
                self.n_tokens += len(emitted.tokens)
                self.has_finished = True
                self.has_matched_stop = False
                self.warnings = emitted.warnings
            else:
                self.n_tokens += len(get_answer_tokens(emitted))
                if isinstance(emitted, ReasoningDelta):
                    self.n_reasoning_tokens += sum(not token.markup for token in emitted.tokens)
        return events


def join_choice_warnings(choices: Iterable[ChoicePipeline]) -> tuple[str, ...]:
    """Return the warnings about all choices, each once."""
    warnings: dict[str, None] = {}
    for choice in choices:
        if choice.warnings:
            warnings |= dict.fromkeys(choice.warnings)
    return tuple(warnings)
