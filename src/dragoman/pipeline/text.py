"""Token ids into text: the detokeniser, stop strings, and the two together as the events of one choice.

Used for every engine that makes tokens. Knows nothing of what the text means; that is the parsers' work.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from ..core.engine import Score, Tokenizer
from ..core.events import Alternative, ChoiceFinished, Event, FinishReason, TextDelta, Token
from ..parsers.marks import Marks


class Piece(Struct, frozen=True, gc=False):
    """What one id is. text: its characters where it holds whole ones, None where it needs its neighbours."""

    token: Token
    data: bytes
    text: str | None


class Vocabulary:
    """What each id reads as, remembered: one a model, shared by all its choices."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, Piece] = {}
        self._deltas: dict[int, TextDelta] = {}

    def piece(self, id: int) -> Piece:
        known = self._pieces.get(id)
        if known is None:
            known = self._pieces[id] = self._look_up(id)
        return known

    def _look_up(self, id: int) -> Piece:
        data = self._tokenizer.token_bytes(id)
        text = data.decode("utf-8", "replace")
        whole = text.encode() == data
        token = Token(id, text, raw=None if whole else data, special=self._tokenizer.is_special(id))
        return Piece(token, data, text if whole else None)

    def delta(self, id: int) -> TextDelta | None:
        """What the id says by itself, as an event of choice 0; None where it needs its neighbours or says nothing.

        Events are values, so that one serves every answer: this is the way of nearly every token.
        """
        known = self._deltas.get(id)
        if known is None:
            piece = self.piece(id)
            if not piece.text or piece.token.special:
                return None
            known = self._deltas[id] = TextDelta(0, piece.text, (piece.token,))
        return known

    def token(self, id: int, score: Score | None = None) -> Token:
        """The token as it is reported, with what the model thought of it."""
        token = self.piece(id).token
        if score is None:
            return token
        top = tuple(self._alternative(other, logprob) for other, logprob in score.top)
        return Token(id, token.text, score.logprob, top, token.raw, score.rank, token.special)

    def _alternative(self, id: int, logprob: float) -> Alternative:
        token = self.piece(id).token
        return Alternative(id, token.text, logprob, token.raw)


class Detokenizer:
    """Ids in, text out, never half a character.

    The texts joined are `bytes.decode("utf-8", "replace")` of the bytes of all ids. Special tokens add nothing,
    unless they are in `keep` or `skip_special` is False; text that only looks like one is text.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, keep: frozenset[int] = frozenset(), skip_special: bool = True
    ) -> None:
        self._vocabulary = vocabulary
        self._keep = keep
        self._skip_special = skip_special
        self._incomplete = b""

    @property
    def incomplete(self) -> bool:
        """A character has begun and not ended."""
        return bool(self._incomplete)

    def feed(self, id: int) -> str:
        """The text that this id releases; "" while a character is incomplete."""
        piece = self._vocabulary.piece(id)
        if piece.token.special and self._skip_special and id not in self._keep:
            return ""
        if piece.text is not None and not self._incomplete:
            return piece.text
        data = self._incomplete + piece.data
        text, used = utf_8_decode(data, "replace", False)
        self._incomplete = data[used:]
        return text

    def close(self) -> str:
        """What stands for the bytes that never became a character."""
        data, self._incomplete = self._incomplete, b""
        return data.decode("utf-8", "replace")


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


class TextAssembler:
    """The tokens of one choice in, its events out; every token rides on exactly one of them.

    A token rides on the event that releases the last of its text, one without text on the next event; what is then
    left rides on ChoiceFinished. min_tokens: a stop string does not count if one of the first so many completes it.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        choice: int,
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        keep: frozenset[int] = frozenset(),
        skip_special: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._vocabulary = vocabulary
        self._choice = choice
        self._detokenizer = Detokenizer(vocabulary, keep=keep, skip_special=skip_special)
        self._stops = StopStrings(stops, include=include_stop) if stops else None
        self._min_tokens = min_tokens
        self._count = 0
        self._waiting: deque[tuple[int, Token]] = deque()
        """Tokens that no event carries yet, each with the end of its text, counted in characters."""
        self._decoded = 0
        self._released = 0

    @property
    def matched(self) -> str | None:
        """The stop string that was found. The sequence should then be aborted and the choice closed."""
        return None if self._stops is None else self._stops.matched

    @property
    def count(self) -> int:
        """Tokens of this choice so far."""
        return self._count

    def feed(self, id: int, score: Score | None = None) -> TextDelta | None:
        """Take the next token. After a match nothing is taken any more: the answer was already whole."""
        stops = self._stops
        if stops is not None and stops.matched is not None:
            return None
        self._count += 1
        if (
            stops is None
            and score is None
            and self._choice == 0
            and not (self._waiting or self._detokenizer.incomplete)
        ):
            plain = self._vocabulary.delta(id)
            if plain is not None:
                return plain
        token, text = self._vocabulary.token(id, score), self._detokenizer.feed(id)
        if text and not self._waiting and (stops is None or stops.passes(text)):
            return TextDelta(self._choice, text, (token,))
        self._decoded += len(text)
        self._waiting.append((self._decoded, token))
        return self._delta(self._pass(text))

    def close(self, reason: FinishReason, stop: int | None = None) -> list[Event]:
        """The end: what was held back, then ChoiceFinished with the tokens that released no text of their own.

        stop: the stop token that was sampled. A stop string that had matched overrules both.
        """
        rest = self._detokenizer.close() if self.matched is None else ""
        self._decoded += len(rest)
        rest = self._pass(rest)
        if self._stops is not None:
            rest += self._stops.close()
        last = self._delta(rest)
        tail = tuple(token for _, token in self._waiting)
        self._waiting.clear()
        if self.matched is not None:
            end = ChoiceFinished(self._choice, FinishReason.STOP, self.matched, tail)
        else:
            end = ChoiceFinished(self._choice, reason, stop, tail)
        return [end] if last is None else [last, end]

    def _pass(self, text: str) -> str:
        if self._stops is None or not text:
            return text
        return self._stops.feed(text, ignore=self._count <= self._min_tokens)

    def _delta(self, text: str) -> TextDelta | None:
        if not text:
            return None
        self._released += len(text)
        tokens: list[Token] = []
        while self._waiting and self._waiting[0][0] <= self._released:
            tokens.append(self._waiting.popleft()[1])
        return TextDelta(self._choice, text, tuple(tokens))
