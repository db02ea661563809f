"""One choice of a response, from token ids to canonical events: detokenizer, parsers,
stop strings.

Stop strings are the last stage: they end a choice's text, never its reasoning or a tool
call's arguments.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..core.engine import TokenLogprob, Tokenizer
from ..core.events import (
    Alternative,
    ChoiceFinished,
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    Token,
    WeightSpan,
    get_answer_tokens,
)
from ..core.syntax import Parser
from ..parsers.base import Buffer
from ..parsers.multi_pattern import AhoCorasick


class ChoicePipeline:
    """Converts the raw events of one choice into canonical ones, and counts the tokens
    that usage reports.
    """

    __slots__ = ("_parser", "_stops", "has_finished", "n_reasoning_tokens", "n_tokens")

    def __init__(self, parser: Parser | None, stops: StopStage | None) -> None:
        self._parser = parser
        self._stops = stops
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
            events = [
                stopped_event
                for parsed_event in events
                for stopped_event in self._stops.feed(parsed_event)
            ]
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


# Detokenization: token ids become text, and the tokens of one choice become raw events.


class VocabularyEntry(Struct, frozen=True, gc=False):
    """One entry of the vocabulary.

    token: the token as it is reported.
    data: its bytes.
    text: its text; None if its bytes are not valid UTF-8 without the tokens around it.
    """

    token: Token
    data: bytes
    text: str | None


class Vocabulary:
    """A cache of the decoded tokens of one model, shared by all its choices."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._entries: dict[int, VocabularyEntry] = {}
        self._deltas: dict[int, TextDelta] = {}

    def find_entry(self, id: int) -> VocabularyEntry:
        entry = self._entries.get(id)
        if entry is None:
            data = self._tokenizer.token_bytes(id)
            text = data.decode("utf-8", "replace")
            # A search for U+FFFD would not do, as a token may be that very character.
            is_valid_utf8 = text.encode() == data
            token = Token(
                id,
                text,
                raw=None if is_valid_utf8 else data,
                special=self._tokenizer.is_special(id),
            )
            entry = self._entries[id] = VocabularyEntry(
                token, data, text if is_valid_utf8 else None
            )
        return entry

    def find_delta(self, id: int) -> TextDelta | None:
        """Return the cached event of choice 0 for this id; None if its text depends on
        other tokens or is empty.

        Events are immutable values, so one instance serves every response. Nearly every
        token takes this path.
        """
        delta = self._deltas.get(id)
        if delta is None:
            entry = self.find_entry(id)
            if not entry.text or entry.token.special:
                return None
            delta = self._deltas[id] = TextDelta(0, entry.text, (entry.token,))
        return delta

    def build_token(self, id: int, score: TokenLogprob | None = None) -> Token:
        """Build the token as it is reported, with its logprob and alternatives."""
        token = self.find_entry(id).token
        if score is None:
            return token
        top_tokens = [(self.find_entry(top_id).token, logprob) for top_id, logprob in score.top]
        top = tuple(
            [Alternative(other.id, other.text, logprob, other.raw) for other, logprob in top_tokens]
        )
        return Token(id, token.text, score.logprob, top, token.raw, score.rank, token.special)


class Detokenizer:
    """Incremental detokenizer that never emits part of a character.

    The joined texts equal `bytes.decode("utf-8", "replace")` of the bytes of all ids.
    Special tokens add no text unless they are in `visible_ids` or `skips_special` is
    False. Text that only looks like a special token stays text.
    """

    __slots__ = ("_skips_special", "_visible_ids", "_vocabulary", "pending_bytes")

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        visible_ids: frozenset[int] = frozenset(),
        skips_special: bool = True,
    ) -> None:
        self._vocabulary = vocabulary
        self._visible_ids = visible_ids
        self._skips_special = skips_special
        self.pending_bytes = b""
        """The first bytes of an incomplete character."""

    def feed(self, id: int) -> str:
        """Return the text that this id completes; "" while a character is incomplete."""
        entry = self._vocabulary.find_entry(id)
        if entry.token.special and self._skips_special and id not in self._visible_ids:
            return ""
        if entry.text is not None and not self.pending_bytes:
            return entry.text
        data = self.pending_bytes + entry.data
        text, used = utf_8_decode(data, "replace", False)
        self.pending_bytes = data[used:]
        return text

    def flush(self) -> str:
        """Return the replacement (U+FFFD) for bytes that never completed a character."""
        data = self.pending_bytes
        self.pending_bytes = b""
        return data.decode("utf-8", "replace")


class TextAssembler:
    """Assembles the tokens of one choice into events; every token is attached to
    exactly one event.

    A token is attached to the event with the last part of its text. A token without
    text is attached to the next event, and tokens that remain at the end to
    ChoiceFinished.
    """

    __slots__ = ("_choice", "_detokenizer", "_pending_tokens", "_vocabulary")

    def __init__(
        self,
        vocabulary: Vocabulary,
        choice: int,
        *,
        visible_ids: frozenset[int] = frozenset(),
        skips_special: bool = True,
    ) -> None:
        self._vocabulary = vocabulary
        self._choice = choice
        self._detokenizer = Detokenizer(
            vocabulary, visible_ids=visible_ids, skips_special=skips_special
        )
        # Tokens that are not yet attached to an event.
        self._pending_tokens: list[Token] = []

    def feed(self, id: int, score: TokenLogprob | None = None) -> TextDelta | None:
        """Add the next token. Return the event that it completes, if any."""
        if (
            score is None
            and self._choice == 0
            and not (self._pending_tokens or self._detokenizer.pending_bytes)
        ):
            delta = self._vocabulary.find_delta(id)
            if delta is not None:
                return delta
        self._pending_tokens.append(self._vocabulary.build_token(id, score))
        return self._build_delta(self._detokenizer.feed(id))

    def finish(
        self,
        reason: FinishReason,
        stop: int | None = None,
        kv_transfer_params: str | None = None,
        weights: tuple[WeightSpan, ...] | None = None,
    ) -> list[Event]:
        """End the choice. Return pending text, then ChoiceFinished with the tokens that
        completed no text.

        stop: the sampled stop token.
        kv_transfer_params, weights: as in `events.ChoiceFinished`.
        """
        final_delta = (
            self._build_delta(self._detokenizer.flush())
            if self._detokenizer.pending_bytes
            else None
        )
        tokens = tuple(self._pending_tokens)
        self._pending_tokens = []
        finished = ChoiceFinished(self._choice, reason, stop, tokens, kv_transfer_params, weights)
        return [finished] if final_delta is None else [final_delta, finished]

    def _build_delta(self, text: str) -> TextDelta | None:
        if not text:
            return None
        tokens = tuple(self._pending_tokens)
        self._pending_tokens = []
        return TextDelta(self._choice, text, tokens)
