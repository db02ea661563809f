"""Token ids into text: the detokeniser, and what it makes of one choice as events.

Used for every engine that makes tokens. Knows nothing of what the text means; that is the parsers' work.
"""

from __future__ import annotations

from codecs import utf_8_decode

from msgspec import Struct

from ..core.engine import Score, Tokenizer
from ..core.events import Alternative, ChoiceFinished, Event, FinishReason, TextDelta, Token, WeightSpan


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

    __slots__ = ("_incomplete", "_keep", "_skip_special", "_vocabulary")

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


class TextAssembler:
    """The tokens of one choice in, its events out; every token rides on exactly one of them.

    A token rides on the event that releases the last of its text, one without text on the next event; what is then
    left rides on ChoiceFinished.
    """

    __slots__ = ("_choice", "_detokenizer", "_vocabulary", "_waiting")

    def __init__(
        self,
        vocabulary: Vocabulary,
        choice: int,
        *,
        keep: frozenset[int] = frozenset(),
        skip_special: bool = True,
    ) -> None:
        self._vocabulary = vocabulary
        self._choice = choice
        self._detokenizer = Detokenizer(vocabulary, keep=keep, skip_special=skip_special)
        # Tokens that no event carries yet.
        self._waiting: list[Token] = []

    def feed(self, id: int, score: Score | None = None) -> TextDelta | None:
        """Take the next token; what it releases, if anything."""
        if score is None and self._choice == 0 and not (self._waiting or self._detokenizer.incomplete):
            plain = self._vocabulary.delta(id)
            if plain is not None:
                return plain
        self._waiting.append(self._vocabulary.token(id, score))
        return self._delta(self._detokenizer.feed(id))

    def close(
        self,
        reason: FinishReason,
        stop: int | None = None,
        kv_transfer_params: str | None = None,
        weights: tuple[WeightSpan, ...] | None = None,
    ) -> list[Event]:
        """The end: what was held back, then ChoiceFinished with the tokens that released no text of their own.

        stop: the stop token that was sampled. kv_transfer_params, weights: as in `events.ChoiceFinished`.
        """
        last = self._delta(self._detokenizer.close())
        tail, self._waiting = tuple(self._waiting), []
        end = ChoiceFinished(self._choice, reason, stop, tail, kv_transfer_params, weights)
        return [end] if last is None else [last, end]

    def _delta(self, text: str) -> TextDelta | None:
        if not text:
            return None
        tokens, self._waiting = tuple(self._waiting), []
        return TextDelta(self._choice, text, tokens)
