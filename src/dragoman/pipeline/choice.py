"""One choice of a response, from raw text to canonical events: its parsers, then its stop strings.

Stop strings are the last stage: they end a choice's text, never its reasoning or a tool call's arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..core.events import ChoiceFinished, Event, FinishReason, ReasoningDelta, TextDelta, get_answer_tokens
from ..core.syntax import Parser
from ..parsers.base import Buffer
from ..parsers.multi_pattern import AhoCorasick


class StopStrings:
    """Ends a text at the first stop string in it.

    The first is the one that is complete first; of several that end at the same character the longest. The result does
    not depend on how the text is chunked. Text is held back only while it may be the start of a stop string.

    stops: none is empty.
    includes_stop: the stop string stays in the text.
    """

    def __init__(self, stops: Sequence[str], *, includes_stop: bool = False) -> None:
        self._patterns = AhoCorasick(stops) if stops else None
        self._includes_stop = includes_stop
        self._state = 0
        self._pending = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that matched; no more text is released after it."""
        return self._matched

    def can_pass_through(self, text: str) -> bool:
        """Whether this text can be released without a scan: nothing is held back, and no stop string starts in it."""
        return not self._state and self._matched is None and not (self._patterns and self._patterns.can_start_in(text))

    def feed(self, text: str, *, ignore: bool = False) -> str:
        """The text that may be released. ignore: a stop string that this text completes does not count."""
        patterns, pos = self._patterns, 0
        if patterns is None:
            return text
        if self._matched is not None:
            return ""
        while True:
            pos, self._state = patterns.search(text, pos, self._state)
            if pos < 0:
                return self._release(text, patterns.pending_lengths[self._state])
            if not ignore:
                return self._match(text[:pos], patterns.match_lengths[self._state])

    def _release(self, text: str, n_pending: int) -> str:
        text = self._pending + text
        n_released = len(text) - n_pending
        self._pending = text[n_released:]
        return text[:n_released]

    def _match(self, text: str, length: int) -> str:
        text, self._pending = self._pending + text, ""
        stop_start = len(text) - length
        self._matched = text[stop_start:]
        return text if self._includes_stop else text[:stop_start]

    def flush(self) -> str:
        """The text that is still held back."""
        text, self._pending = self._pending, ""
        return text


class StopStage:
    """The stop strings of one choice, after its parsers.

    The stop string is removed from the text unless includes_stop is set. One that completes within the first min_tokens
    tokens does not count (as in vLLM). After a match only ChoiceFinished follows, with all tokens not yet sent.
    """

    def __init__(self, choice: int, stops: Sequence[str], *, includes_stop: bool, min_tokens: int) -> None:
        self._choice = choice
        self._build_stops = lambda: StopStrings(stops, includes_stop=includes_stop)
        self._stops = self._build_stops()
        self._min_tokens = min_tokens
        self._n_tokens = 0
        self._pending_tokens = Buffer()
        self.matched: str | None = None

    def feed(self, event: Event) -> list[Event]:
        if isinstance(event, ChoiceFinished):
            return self._finish(event)
        tokens = get_answer_tokens(event)
        self._n_tokens += len(tokens)
        if self.matched is not None:
            self._pending_tokens.push("", tokens)
            return []
        if isinstance(event, TextDelta):
            return self._feed_text(event)
        return [*self._flush(), event]

    def _feed_text(self, event: TextDelta) -> list[Event]:
        if self._pending_tokens.is_empty and self._stops.can_pass_through(event.text):
            return [event]
        self._pending_tokens.push(event.text, event.tokens)
        # An engine of events may report no tokens.
        is_early = self._min_tokens > 0 and self._n_tokens <= self._min_tokens
        text = self._stops.feed(event.text, ignore=is_early)
        self.matched = self._stops.matched
        if not text:
            return []
        return [TextDelta(event.choice, text, self._pending_tokens.pop(len(text))[1])]

    def _flush(self) -> list[Event]:
        """Text ends here: release what was held back for a possible stop string."""
        text = self._stops.flush()
        # A stop string does not continue behind reasoning or a call.
        self._stops = self._build_stops()
        tokens = self._pending_tokens.pop(len(self._pending_tokens))[1]
        if not text and not tokens:
            return []
        return [TextDelta(self._choice, text, tokens)]

    def _finish(self, event: ChoiceFinished) -> list[Event]:
        if self.matched is not None:
            tokens = self._pending_tokens.pop(len(self._pending_tokens))[1] + event.tokens
            return [replace(event, reason=FinishReason.STOP, stop=self.matched, tokens=tokens)]
        return [*self._flush(), event]


class ChoicePipeline:
    """Converts the raw events of one choice into canonical ones, and counts the tokens that usage reports."""

    __slots__ = ("_parser", "_stops", "has_finished", "n_reasoning_tokens", "n_tokens")

    def __init__(self, parser: Parser | None, stops: StopStage | None) -> None:
        self._parser, self._stops = parser, stops
        self.has_finished = False
        self.n_tokens = 0
        self.n_reasoning_tokens = 0

    @property
    def has_matched_stop(self) -> bool:
        """Whether a stop string matched, so that the choice should be closed."""
        return self._stops is not None and self._stops.matched is not None and not self.has_finished

    def feed(self, event: Event) -> list[Event]:
        events = [event] if self._parser is None else self._parser.feed(event)
        if self._stops is not None:
            events = [stopped_event for parsed_event in events for stopped_event in self._stops.feed(parsed_event)]
        for emitted in events:
            if type(emitted) is TextDelta:
                self.n_tokens += len(emitted.tokens)
            else:
                tokens = len(get_answer_tokens(emitted))
                self.n_tokens += tokens
                if isinstance(emitted, ReasoningDelta):
                    self.n_reasoning_tokens += sum(not token.markup for token in emitted.tokens)
                elif isinstance(emitted, ChoiceFinished):
                    self.has_finished = True
        return events
