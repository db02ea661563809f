"""The detokenizer: the token ids of one choice become text deltas, with the tokens
attached.
"""

from __future__ import annotations

from codecs import utf_8_decode

from msgspec import Struct

from ..core.events import (
    Alternative,
    ChoiceFinished,
    Event,
    FinishReason,
    TextDelta,
    Token,
    WeightSpan,
)
from ..core.token_engine import TokenLogprob
from ..core.tokenizer import Tokenizer


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
    """A cache of the decoded tokens of one model, shared by all its choices.

    deltas: the results of `find_delta` that are not None.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._entries: dict[int, VocabularyEntry] = {}
        self.deltas: dict[int, TextDelta] = {}

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
        """Return the event of choice 0 for this id; None if its text depends on other
        tokens or is empty.

        Events are immutable values, so one instance serves every response.
        """
        entry = self.find_entry(id)
        if not entry.text or entry.token.special:
            return None
        delta = self.deltas[id] = TextDelta(0, entry.text, (entry.token,))
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
            # Nearly every token is among these.
            delta = self._vocabulary.deltas.get(id) or self._vocabulary.find_delta(id)
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
