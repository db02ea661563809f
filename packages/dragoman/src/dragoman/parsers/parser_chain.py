"""Runs several parsers in sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.events import (
    Event,
)
from ..core.syntax import Parser


class ParserChain:
    """Several parsers in sequence; each parses the text that the previous ones have
    left as text.
    """

    def __init__(self, parsers: Sequence[Parser]) -> None:
        self._parsers = tuple(parsers)
        self.is_done = not self._parsers

    def feed(self, event: Event) -> list[Event]:
        events = [event]
        for parser in self._parsers:
            match events:
                case [single_event]:
                    events = parser.feed(single_event)
                case _:
                    events = [
                        parsed_event
                        for source_event in events
                        for parsed_event in parser.feed(source_event)
                    ]
        # The first parser is that of the reasoning, which only begins an answer.
        if self._parsers and self._parsers[0].is_done:
            self._parsers = self._parsers[1:]
            self.is_done = not self._parsers
        return events


def chain_parsers(parsers: Iterable[Parser]) -> Parser:
    """Combine parsers into one. Without parsers, all events pass through."""
    parser_list = tuple(parsers)
    return parser_list[0] if len(parser_list) == 1 else ParserChain(parser_list)
