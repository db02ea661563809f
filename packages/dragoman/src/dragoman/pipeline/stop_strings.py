"""Stop strings, which end the text of a choice.

They are the last stage of its pipeline: they end text, never reasoning or a tool call's
arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..core.events import (
    ChoiceFinished,
    Event,
    FinishReason,
    TextDelta,
    get_answer_tokens,
)
from ..parsers.aho_corasick import AhoCorasick
from ..parsers.text_buffer import Buffer


class StopStage:
    """Applies the stop strings of one choice, after its parsers.

    The stop string is removed from the text unless includes_stop is set. One that
    completes within the first min_tokens tokens does not count (as in vLLM). After a
    match only ChoiceFinished follows, with all tokens not yet sent.
    """

    def __init__(
        self, choice: int, stops: Sequence[str], *, includes_stop: bool, min_tokens: int
    ) -> None:
        self._choice = choice
        self._build_stops = lambda: StopStrings(stops, includes_stop=includes_stop)
        self._stops = self._build_stops()
        self._min_tokens = min_tokens
        self._n_tokens = 0
        self._pending_tokens = Buffer()
        self.matched: str | None = None

    def feed(self, event: Event) -> list[Event]:
        if isinstance(event, ChoiceFinished) and self.matched is not None:
            unsent_tokens = self._pending_tokens.pop(len(self._pending_tokens))[1] + event.tokens
            return [
                replace(event, reason=FinishReason.STOP, stop=self.matched, tokens=unsent_tokens)
            ]
        tokens = get_answer_tokens(event)
        self._n_tokens += len(tokens)
        if self.matched is not None:
            self._pending_tokens.push("", tokens)
            return []
        if not isinstance(event, TextDelta):
            # The text ends here, so text that was held back is emitted: a stop string
            # does not continue after reasoning or a call.
            text = self._stops.flush()
            self._stops = self._build_stops()
            pending_tokens = self._pending_tokens.pop(len(self._pending_tokens))[1]
            return (
                [TextDelta(self._choice, text, pending_tokens), event]
                if text or pending_tokens
                else [event]
            )
        if self._pending_tokens.is_empty and self._stops.can_pass_through(event.text):
            return [event]
        self._pending_tokens.push(event.text, tokens)
        # Event engines may report no tokens, so the counts alone (0 <= 0) would always
        # be early.
        is_early = self._min_tokens > 0 and self._n_tokens <= self._min_tokens
        text = self._stops.feed(event.text, ignore=is_early)
        self.matched = self._stops.matched
        if not text:
            return []
        return [TextDelta(event.choice, text, self._pending_tokens.pop(len(text))[1])]


class StopStrings:
    """Ends a text at the first stop string in it.

    The stop string that completes first wins, and the longest of several that end at
    the same character. The result does not depend on how the text is chunked. Text is
    held back only while it may be the start of a stop string.

    stops: the stop strings; none may be empty.
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
        """The stop string that matched, if any; no more text is emitted after it."""
        return self._matched

    def can_pass_through(self, text: str) -> bool:
        """Whether this text can be emitted without a scan: nothing is held back, and no
        stop string starts in it.
        """
        return (
            not self._state
            and self._matched is None
            and not (self._patterns and self._patterns.can_start_in(text))
        )

    def feed(self, text: str, *, ignore: bool = False) -> str:
        """Return the text that may be emitted.

        ignore: a stop string that this text completes does not count.
        """
        patterns = self._patterns
        pos = 0
        if patterns is None:
            return text
        if self._matched is not None:
            return ""
        while True:
            pos, self._state = patterns.search(text, pos, self._state)
            if pos < 0:
                text = self._pending + text
                n_released = len(text) - patterns.pending_lengths[self._state]
                self._pending = text[n_released:]
                return text[:n_released]
            if not ignore:
                text = self._pending + text[:pos]
                self._pending = ""
                stop_start = len(text) - patterns.match_lengths[self._state]
                self._matched = text[stop_start:]
                return text if self._includes_stop else text[:stop_start]

    def flush(self) -> str:
        """Return the text that is still held back."""
        text = self._pending
        self._pending = ""
        return text
