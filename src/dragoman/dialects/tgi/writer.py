"""TGI's /generate and /generate_stream on the wire, and LightLLM's of the same names.

the stream:  an event a token; the last one has the whole text, and why it ended; nothing after it, but for an error

An event says what both say: TGI's `index`, `top_tokens` and `details`, LightLLM's counts, `finished` and
`finish_reason`. Whole answers differ in the type of `generated_text`, so that there one form must be chosen.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.errors import DragomanError
from ...core.events import (
    UNKNOWN_ID,
    Alternative,
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
from ..content_tokens import Matched, TokenMatcher
from ..envelope import COMMENT
from ..text import line_safe, logprob, printable
from .errors import tgi_error


class TgiView(Struct, frozen=True, kw_only=True):
    """What the client asked to see.

    details: TGI's. scored: tokens have logprobs. own_form: a whole answer has LightLLM's form, with its tokens or
    without; None is TGI's form. listed: TGI's form as an array of one. prefill: the prompt's tokens. top: most
    alternatives a token. prefix: stands before the text. limit, stops: after so many tokens, or behind such a text,
    none can come.
    """

    details: bool = False
    scored: bool = False
    own_form: bool | None = None
    listed: bool = False
    prefill: bool = False
    top: int = 0
    seed: int | None = None
    prefix: str = ""
    limit: int | None = None
    stops: tuple[str, ...] = ()


DEFAULT_VIEW = TgiView()


class _Scored(Struct, frozen=True):
    """A token of the prompt, of which the first has no logprob."""

    id: int | None
    text: str
    logprob: float | None


class _Token(Struct, frozen=True):
    """id: null where the engine tells none, or where an event has no token of its own. The counts are LightLLM's."""

    id: int | None
    text: str
    logprob: float | None
    special: bool
    count_output_tokens: int | UnsetType = UNSET
    prompt_tokens: int | UnsetType = UNSET


class _StreamDetails(Struct, frozen=True):
    finish_reason: str
    generated_tokens: int
    input_length: int
    seed: int | None


class _StreamEvent(Struct, frozen=True):
    index: int
    token: _Token
    top_tokens: list[_Token] | UnsetType
    generated_text: str | None = None
    finished: bool = False
    finish_reason: str | None = None
    details: _StreamDetails | None = None


class _Details(Struct, frozen=True):
    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: list[_Scored]
    tokens: list[_Token]
    top_tokens: list[list[_Token]] | UnsetType


class _Whole(Struct, frozen=True):
    generated_text: str
    details: _Details | UnsetType


class _LightllmWhole(Struct, frozen=True):
    """Of one choice all but the text are no arrays. Of several whose tokens nobody tells, their numbers are null."""

    generated_text: list[str]
    count_output_tokens: int | list[int | None] | None
    finish_reason: str | list[str]
    prompt_tokens: int
    tokens: list[_Token] | list[list[_Token]] | UnsetType


class _Piece(Struct):
    """What an event will say. token: None for text of which no token is told. count: tokens up to here."""

    token: Token | None
    text: str
    count: int

    @property
    def is_special(self) -> bool:
        return self.token is not None and self.token.special


class _TokenPieces:
    """Each token of an answer with its piece of the text, streamed as in the whole: joined they are the text.

    A control token is told by its name, as TGI does it, and is none of the text.
    """

    def __init__(self) -> None:
        self._matcher = TokenMatcher()
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self.has_tokens = False

    def feed(self, text: str, tokens: Sequence[Token]) -> list[tuple[Token, str]]:
        self.has_tokens = self.has_tokens or bool(tokens)
        return self._read(self._matcher.feed(text, tokens))

    def skip(self, tokens: Sequence[Token]) -> list[tuple[Token, str]]:
        """Tokens that released no text."""
        self.has_tokens = self.has_tokens or bool(tokens)
        return self._read(self._matcher.skip(tokens))

    def close(self) -> list[tuple[Token, str]]:
        return self._read(self._matcher.close())

    def rest(self) -> str:
        return self._matcher.rest()

    def _read(self, found: Sequence[Matched]) -> list[tuple[Token, str]]:
        return [
            (each.token, each.token.text if each.token.special else self._decoder.decode(each.data)) for each in found
        ]


class TgiWriter:
    """One answer, streamed or whole. A stream has one choice.

    The last token's event also tells how it ended: it waits for that where nothing can follow it. Where the end comes
    unforeseen and without a token, an event of its own tells it, whose token has neither id nor text.
    """

    def __init__(self, view: TgiView = DEFAULT_VIEW) -> None:
        self._view = view
        self._prompt_tokens = self._count = self._index = 0
        self._texts: list[str] = []
        self._pieces = _TokenPieces()
        self._behind, self._longest = "", max(map(len, view.stops), default=1)
        self._waiting: list[_Piece] = []
        self._ended: ChoiceFinished | None = None

    @property
    def end(self) -> bytes:
        return b""

    @property
    def keepalive(self) -> bytes:
        return COMMENT

    def error(self, error: DragomanError) -> bytes:
        return b"data: %s\n\n" % tgi_error(error)

    def feed(self, event: Event) -> bytes:
        match event:
            case Started(prompt_tokens):
                self._prompt_tokens = prompt_tokens
                return b""
            case PromptTokens():
                return b""
            case TextDelta(_, text, tokens) | RefusalDelta(_, text, tokens):
                return self._go_on(text, self._pieces.feed(text, tokens))
            case ChoiceFinished():
                self._ended = event
                return self._go_on("", self._pieces.skip(event.tokens) + self._pieces.close())
            case Finished(usage):
                return self._last(usage.completion)
            case _:
                # A raw prompt's answer has one text; tokens of anything else are told, and say nothing.
                return self._go_on("", self._pieces.skip(event.tokens))

    def full(self, reply: Reply) -> bytes:
        answer = self._whole(reply) if self._view.own_form is None else self._lightllm(reply)
        return line_safe(msgspec.json.encode([answer] if self._view.listed and isinstance(answer, _Whole) else answer))

    def _go_on(self, text: str, pieces: Sequence[tuple[Token, str]]) -> bytes:
        self._texts.append(text)
        for token, own in pieces:
            self._count += 1
            self._waiting.append(_Piece(token, own, self._count))
        if self._ended is not None or not self._pieces.has_tokens:
            rest = self._pieces.rest()
            if self._waiting and not self._waiting[-1].is_special:
                self._waiting[-1].text += rest
            elif rest:
                self._waiting.append(_Piece(None, rest, self._count))
        self._behind = (self._behind + text)[-self._longest :]
        keep = 1 if self._is_over() else 0
        ready, self._waiting = self._waiting[: len(self._waiting) - keep], self._waiting[len(self._waiting) - keep :]
        return b"".join([_event(self._said(piece)) for piece in ready])

    def _is_over(self) -> bool:
        """The last token is here, or it seems so."""
        limit = self._view.limit
        full = limit is not None and self._count >= limit
        return self._ended is not None or full or self._behind.endswith(self._view.stops)

    def _last(self, completion: int) -> bytes:
        assert self._ended is not None, "Finished comes after every choice's end"
        piece = self._waiting.pop() if self._waiting else _Piece(None, "", self._count)
        reason, counted = self._ended, self._count or completion
        details = _StreamDetails(_reason(reason), counted, self._prompt_tokens, self._view.seed)
        last = msgspec.structs.replace(
            self._said(piece),
            generated_text=self._text("".join(self._texts)),
            finished=True,
            finish_reason=_lightllm_reason(reason),
            details=details if self._view.details else None,
        )
        return _event(last)

    def _said(self, piece: _Piece) -> _StreamEvent:
        self._index += 1
        token = piece.token
        if token is None:
            said = _Token(None, printable(piece.text), None, not piece.text, piece.count, self._prompt_tokens)
            return _StreamEvent(self._index, said, UNSET)
        said = msgspec.structs.replace(
            self._token(token),
            text=printable(piece.text),
            count_output_tokens=piece.count,
            prompt_tokens=self._prompt_tokens,
        )
        return _StreamEvent(self._index, said, self._top(token) if self._view.top else UNSET)

    def _whole(self, reply: Reply) -> _Whole:
        choice = reply.choices[0]
        return _Whole(self._text(_text_of(choice)), self._details(reply, choice) if self._view.details else UNSET)

    def _details(self, reply: Reply, choice: Choice) -> _Details:
        prompt = reply.prompts[0] if reply.prompts and self._view.prefill else None
        return _Details(
            finish_reason=_reason(choice),
            generated_tokens=len(choice.tokens) or reply.usage.completion,
            seed=self._view.seed,
            prefill=[] if prompt is None else [_prefilled(token) for token in prompt.tokens],
            tokens=self._tokens(choice),
            top_tokens=[self._top(token) for token in choice.tokens] if self._view.top else UNSET,
        )

    def _lightllm(self, reply: Reply) -> _LightllmWhole:
        choices, one = reply.choices, len(reply.choices) == 1
        counts = [len(choice.tokens) or (reply.usage.completion if one else None) for choice in choices]
        reasons = [_lightllm_reason(choice) for choice in choices]
        tokens = [self._counted(choice, reply.usage.prompt) for choice in choices]
        return _LightllmWhole(
            generated_text=[self._text(_text_of(choice)) for choice in choices],
            count_output_tokens=counts[0] if one else counts,
            finish_reason=reasons[0] if one else reasons,
            prompt_tokens=reply.usage.prompt,
            tokens=(tokens[0] if one else tokens) if self._view.own_form else UNSET,
        )

    def _counted(self, choice: Choice, prompt: int) -> list[_Token]:
        return [
            msgspec.structs.replace(token, count_output_tokens=count, prompt_tokens=prompt)
            for count, token in enumerate(self._tokens(choice), start=1)
        ]

    def _tokens(self, choice: Choice) -> list[_Token]:
        """With the texts that a stream tells."""
        pieces, told = _TokenPieces(), list[tuple[Token, str]]()
        for part in choice.parts:
            told += (
                pieces.feed(part.text, part.tokens) if isinstance(part, Text | Refusal) else pieces.skip(part.tokens)
            )
        told += pieces.skip(choice.tail) + pieces.close()
        return [msgspec.structs.replace(self._token(token), text=printable(text)) for token, text in told]

    def _text(self, text: str) -> str:
        return printable(self._view.prefix + text)

    def _token(self, token: Token) -> _Token:
        score = logprob(token.logprob) if self._view.scored else None
        return _Token(_id(token), printable(token.text), score, token.special)

    def _top(self, token: Token) -> list[_Token]:
        """Whether an alternative is a control token is not known of any but the sampled one."""
        return [
            _Token(_id(other), printable(other.text), logprob(other.logprob), token.special and other.id == token.id)
            for other in token.top[: self._view.top]
        ]


def _event(said: _StreamEvent) -> bytes:
    return b"data: %s\n\n" % line_safe(msgspec.json.encode(said))


def _text_of(choice: Choice) -> str:
    return "".join(part.text for part in choice.parts if isinstance(part, Text | Refusal))


def _prefilled(token: Token) -> _Scored:
    return _Scored(_id(token), printable(token.text), None if token.logprob is None else logprob(token.logprob))


def _id(token: Token | Alternative) -> int | None:
    return None if token.id == UNKNOWN_ID else token.id


def _reason(ended: ChoiceFinished | Choice) -> str:
    """TGI has no word for an answer that was ended from outside: it is cut off, as by a limit."""
    if ended.reason is not FinishReason.STOP:
        return "length"
    return "eos_token" if ended.stop is None else "stop_sequence"


def _lightllm_reason(ended: ChoiceFinished | Choice) -> str:
    return "stop" if ended.reason is FinishReason.STOP else "length"
