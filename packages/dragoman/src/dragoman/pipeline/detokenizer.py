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

    is_aligned: whether the next token without logprobs is an event of its own if it is
        among `Vocabulary.deltas`. A caller may then use that event, without `feed`.
    """

    __slots__ = (
        "_choice",
        "_detokenizer",
        "_pending_tokens",
        "_skips_special",
        "_visible_ids",
        "_vocabulary",
        "is_aligned",
    )

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
        self._visible_ids = visible_ids
        self._skips_special = skips_special
        # Both None until a token needs them, which few choices have: many of them wait
        # for tokens at once.
        self._detokenizer: Detokenizer | None = None
        self._pending_tokens: list[Token] | None = None
        # The shared events are those of choice 0.
        self.is_aligned = choice == 0

    def feed(self, id: int, score: TokenLogprob | None = None) -> TextDelta | None:
        """Add the next token. Return the event that it completes, if any."""
        if score is None and self.is_aligned:
            # Nearly every token is among these.
            delta = self._vocabulary.deltas.get(id) or self._vocabulary.find_delta(id)
            if delta is not None:
                return delta
        detokenizer = self._detokenizer
        if detokenizer is None:
            detokenizer = self._detokenizer = Detokenizer(
                self._vocabulary, visible_ids=self._visible_ids, skips_special=self._skips_special
            )
        token = self._vocabulary.build_token(id, score)
        text = detokenizer.feed(id)
        if text:
            delta = TextDelta(self._choice, text, (*self._take_pending_tokens(), token))
        else:
            delta = None
            if self._pending_tokens is None:
                self._pending_tokens = []
            self._pending_tokens.append(token)
        self.is_aligned = self._choice == 0 and delta is not None and not detokenizer.pending_bytes
        return delta

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
        tokens = () if self._pending_tokens is None else self._take_pending_tokens()
        if self._detokenizer is not None and (text := self._detokenizer.flush()):
            return [
                TextDelta(self._choice, text, tokens),
                ChoiceFinished(self._choice, reason, stop, (), kv_transfer_params, weights),
            ]
        return [ChoiceFinished(self._choice, reason, stop, tokens, kv_transfer_params, weights)]

    def _take_pending_tokens(self) -> tuple[Token, ...]:
        tokens = self._pending_tokens
        self._pending_tokens = None
        return () if tokens is None else tuple(tokens)
