"""Renders TGI's /generate and /generate_stream.

The stream has one event for each token. The last one has the full text and the details
with the finish reason; only an error may follow.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.errors import DragomanError
from ...core.events import (
    UNKNOWN_TOKEN_ID,
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    RefusalDelta,
    Started,
    TextDelta,
    Token,
)
from ...core.message import Refusal, Text
from ...core.reply import Choice, Reply
from ..json_encoding import clamp_logprob, escape_line_breaks, replace_surrogates
from ..server_sent_events import KEEPALIVE_COMMENT
from ..token_alignment import Matched, TokenMatcher
from .errors import render_tgi_error


class TgiRenderOptions(Struct, frozen=True, kw_only=True):
    """The response options of TGI.

    details: TGI's `details`.
    logprobs: tokens have logprobs.
    as_list: render a full response as an array with one entry.
    prefill: return the prompt's tokens.
    top_tokens: maximum alternatives for each token.
    prefix: text before the answer.
    max_tokens, stops: the limits after which no further token can follow.
    """

    details: bool = False
    logprobs: bool = False
    as_list: bool = False
    prefill: bool = False
    top_tokens: int = 0
    seed: int | None = None
    prefix: str = ""
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()


DEFAULT_OPTIONS = TgiRenderOptions()


class TgiPrefillToken(Struct, frozen=True):
    """A token of the prompt; the first has no logprob."""

    id: int
    text: str
    logprob: float | None


class TgiToken(Struct, frozen=True):
    """A token.

    id: -1 if the engine reports none, or if an event has no token of its own: the
        official client's is an integer.
    """

    id: int
    text: str
    logprob: float | None
    special: bool


class TgiStreamDetails(Struct, frozen=True):
    finish_reason: str
    generated_tokens: int | None
    input_length: int | None
    seed: int | None


class TgiStreamEvent(Struct, frozen=True):
    index: int
    token: TgiToken
    top_tokens: list[TgiToken] | UnsetType
    generated_text: str | None = None
    details: TgiStreamDetails | None = None


class TgiDetails(Struct, frozen=True):
    finish_reason: str
    generated_tokens: int | None
    seed: int | None
    prefill: list[TgiPrefillToken]
    tokens: list[TgiToken]
    top_tokens: list[list[TgiToken]] | UnsetType


class TgiResponse(Struct, frozen=True):
    generated_text: str
    details: TgiDetails | UnsetType


class _PendingEvent(Struct):
    """An event that has not been sent yet.

    token: None for text without a token.
    """

    token: Token | None
    text: str

    @property
    def is_special(self) -> bool:
        return self.token is not None and self.token.special


class _TokenPieces:
    """Pairs each token with its part of the text, in the same way for streams and full
    responses.

    The parts add up to the text, except those of control tokens: each has its name, as
    in TGI.
    """

    def __init__(self) -> None:
        self._matcher = TokenMatcher()
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self.has_tokens = False

    def feed(self, text: str, tokens: Sequence[Token]) -> list[tuple[Token, str]]:
        self.has_tokens = self.has_tokens or bool(tokens)
        return self._read(self._matcher.feed(text, tokens))

    def skip(self, tokens: Sequence[Token]) -> list[tuple[Token, str]]:
        """Add tokens that released no text."""
        self.has_tokens = self.has_tokens or bool(tokens)
        return self._read(self._matcher.skip(tokens))

    def close(self) -> list[tuple[Token, str]]:
        return self._read(self._matcher.close())

    def rest(self) -> str:
        return self._decoder.decode(self._matcher.rest())

    def _read(self, matches: Sequence[Matched]) -> list[tuple[Token, str]]:
        return [
            (
                match.token,
                match.token.text if match.token.special else self._decoder.decode(match.data),
            )
            for match in matches
        ]


class TgiWriter:
    """Renders one answer, streamed or full. A stream has one choice.

    The last token's event also contains the finish reason, so a token that may be the
    last is held back until that is known. If the end comes unexpectedly and without a
    token, it is sent in an event of its own, whose token has neither id nor text.
    """

    def __init__(self, options: TgiRenderOptions = DEFAULT_OPTIONS) -> None:
        self._options = options
        self._prompt_tokens: int | None = None
        self._count = self._index = 0
        self._texts: list[str] = []
        self._pieces = _TokenPieces()
        # Only the end of the text decides whether a stop string was reached, so only
        # the end is kept.
        self._text_tail = ""
        self._longest_stop = max(map(len, options.stops), default=1)
        self._pending: list[_PendingEvent] = []
        self._choice_finished: ChoiceFinished | None = None

    @property
    def end(self) -> bytes:
        return b""

    @property
    def keepalive(self) -> bytes:
        return KEEPALIVE_COMMENT

    def render_error(self, error: DragomanError) -> bytes:
        return b"data: %s\n\n" % render_tgi_error(error)

    def feed(self, event: Event) -> bytes:
        match event:
            case Started(prompt_tokens):
                # `Finished` may have the count.
                self._prompt_tokens = None if event.is_estimate else prompt_tokens
                return b""
            case PromptTokens():
                return b""
            case TextDelta(_, text, tokens) | RefusalDelta(_, text, tokens):
                return self._add(text, self._pieces.feed(text, tokens))
            case ChoiceFinished():
                self._choice_finished = event
                return self._add("", self._pieces.skip(event.tokens) + self._pieces.close())
            case Finished(usage):
                assert self._choice_finished is not None, "Finished comes after every choice's end"
                self._prompt_tokens = usage.prompt
                # Every stream needs an event that finishes it, even one without any
                # token.
                pending = self._pending.pop() if self._pending else _PendingEvent(None, "")
                # Some engines report only the number of tokens, not the tokens.
                finish = self._choice_finished
                generated_tokens = self._count or usage.completion
                seed = self._options.seed
                details = TgiStreamDetails(
                    _map_reason(finish), generated_tokens, self._prompt_tokens, seed
                )
                last_event = msgspec.structs.replace(
                    self._build_event(pending),
                    generated_text=self._add_prefix("".join(self._texts)),
                    details=details if self._options.details else None,
                )
                return _render_event(last_event)
            case _:
                # A raw prompt's answer has one text; tokens of other parts are listed
                # without text.
                return self._add("", self._pieces.skip(event.tokens))

    def render_full(self, reply: Reply) -> bytes:
        answer = self._build_response(reply)
        return escape_line_breaks(
            msgspec.json.encode([answer] if self._options.as_list else answer)
        )

    def _add(self, text: str, pieces: Sequence[tuple[Token, str]]) -> bytes:
        self._texts.append(text)
        for token, token_text in pieces:
            self._count += 1
            self._pending.append(_PendingEvent(token, token_text))
        if self._choice_finished is not None or not self._pieces.has_tokens:
            unmatched_text = self._pieces.rest()
            # The text of a control token is its name, which is not part of the answer:
            # what is left gets an event of its own.
            if self._pending and not self._pending[-1].is_special:
                self._pending[-1].text += unmatched_text
            elif unmatched_text:
                self._pending.append(_PendingEvent(None, unmatched_text))
        self._text_tail = (self._text_tail + text)[-self._longest_stop :]
        limit = self._options.max_tokens
        reached_limit = limit is not None and self._count >= limit
        # The last token's event carries the full text and the details, which are known
        # with the finish reason: it is kept if the last token has arrived, or probably
        # has.
        is_last = (
            self._choice_finished is not None
            or reached_limit
            or self._text_tail.endswith(self._options.stops)
        )
        sent_count = max(0, len(self._pending) - is_last)
        ready = self._pending[:sent_count]
        self._pending = self._pending[sent_count:]
        return b"".join([_render_event(self._build_event(pending)) for pending in ready])

    def _build_event(self, pending: _PendingEvent) -> TgiStreamEvent:
        self._index += 1
        token = pending.token
        if token is None:
            wire_token = TgiToken(
                UNKNOWN_TOKEN_ID,
                replace_surrogates(pending.text),
                None,
                not pending.text,
            )
            return TgiStreamEvent(self._index, wire_token, UNSET)
        wire_token = msgspec.structs.replace(
            self._build_token(token),
            text=replace_surrogates(pending.text),
        )
        return TgiStreamEvent(
            self._index, wire_token, self._build_top(token) if self._options.top_tokens else UNSET
        )

    def _build_response(self, reply: Reply) -> TgiResponse:
        choice = reply.choices[0]
        options = self._options
        text = self._add_prefix(_join_text(choice))
        if not options.details:
            return TgiResponse(text, UNSET)
        prompt = reply.prompts[0] if reply.prompts and options.prefill else None
        prefill = [
            TgiPrefillToken(
                token.id,
                replace_surrogates(token.text),
                None if token.logprob is None else clamp_logprob(token.logprob),
            )
            for token in (() if prompt is None else prompt.tokens)
        ]
        details = TgiDetails(
            finish_reason=_map_reason(choice),
            generated_tokens=len(choice.tokens) or reply.usage.completion,
            seed=options.seed,
            prefill=prefill,
            tokens=self._build_tokens(choice),
            top_tokens=[self._build_top(token) for token in choice.tokens]
            if options.top_tokens
            else UNSET,
        )
        return TgiResponse(text, details)

    def _build_tokens(self, choice: Choice) -> list[TgiToken]:
        """Build the tokens of a full response, with the same texts as in a stream."""
        pieces = _TokenPieces()
        token_texts = list[tuple[Token, str]]()
        for part in choice.parts:
            token_texts += (
                pieces.feed(part.text, part.tokens)
                if isinstance(part, Text | Refusal)
                else pieces.skip(part.tokens)
            )
        token_texts += pieces.skip(choice.trailing_tokens) + pieces.close()
        return [
            msgspec.structs.replace(self._build_token(token), text=replace_surrogates(text))
            for token, text in token_texts
        ]

    def _add_prefix(self, text: str) -> str:
        return replace_surrogates(self._options.prefix + text)

    def _build_token(self, token: Token) -> TgiToken:
        logprob_value = clamp_logprob(token.logprob) if self._options.logprobs else None
        return TgiToken(token.id, replace_surrogates(token.text), logprob_value, token.special)

    def _build_top(self, token: Token) -> list[TgiToken]:
        """Build the alternatives. Only for the sampled token is it known whether it is
        a control token.
        """
        return [
            TgiToken(
                alternative.id,
                replace_surrogates(alternative.text),
                clamp_logprob(alternative.logprob),
                token.special and alternative.id == token.id,
            )
            for alternative in token.top[: self._options.top_tokens]
        ]


def _render_event(event: TgiStreamEvent) -> bytes:
    return b"data: %s\n\n" % escape_line_breaks(msgspec.json.encode(event))


def _join_text(choice: Choice) -> str:
    return "".join(part.text for part in choice.parts if isinstance(part, Text | Refusal))


def _map_reason(finish: ChoiceFinished | Choice) -> str:
    """Map a finish reason. TGI has none for an aborted answer: it is reported as
    `length`, like a truncated one.
    """
    if finish.reason is not FinishReason.STOP:
        return "length"
    return "eos_token" if finish.stop is None else "stop_sequence"
