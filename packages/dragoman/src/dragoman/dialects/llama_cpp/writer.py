"""Renders answers of /completion and /infill, streamed or as one object.

    the stream:  chunk*  last        `stop` is true in the last, which has the counts

The concatenation of `content`, of `tokens` and of `completion_probabilities` over the
stream is that of the full object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.errors import DragomanError
from ...core.events import (
    Alternative,
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    RefusalDelta,
    Started,
    TextDelta,
    Timings,
    Token,
    Usage,
)
from ...core.reply import Choice, Reply
from ..interfaces import Profile
from ..json_encoding import clamp_logprob, escape_line_breaks, replace_surrogates
from ..openai_errors import render_openai_error
from ..server_sent_events import KEEPALIVE_COMMENT


class LlamaCppRenderOptions(Struct, frozen=True, kw_only=True):
    """The response options.

    prompt: the prompt, which the last object repeats; empty for token ids.
    probabilities: maximum alternatives of each token; 0 omits the probabilities.
    tokens: return the token ids.
    fields: paths of the fields to return; None is all.
    """

    prompt: str = ""
    probabilities: int = 0
    tokens: bool = False
    fields: tuple[str, ...] | None = None


class LlamaCppAlternative(Struct, frozen=True):
    id: int
    token: str
    bytes: list[int]
    logprob: float


class LlamaCppProbability(Struct, frozen=True):
    """A token with its alternatives."""

    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[LlamaCppAlternative]


class LlamaCppTimings(Struct, frozen=True, omit_defaults=True):
    """Counts and milliseconds; without times if the server does not report them."""

    prompt_n: int | None
    predicted_n: int | None
    cache_n: int | None = None
    prompt_ms: float | None = None
    predicted_ms: float | None = None
    prompt_per_second: float | None = None
    predicted_per_second: float | None = None


class LlamaCppChunk(Struct, frozen=True):
    """An event of a stream before the last."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    completion_probabilities: list[LlamaCppProbability] | UnsetType = UNSET


class LlamaCppResponse(Struct, frozen=True):
    """A full answer, or the last event of a stream.

    tokens_predicted, tokens_evaluated, tokens_cached: null if unknown.
    stop_type: eos, word or limit; none for an answer that was aborted.
    truncated: the context was full.
    """

    index: int
    content: str
    tokens: list[int]
    stop: bool
    model: str
    tokens_predicted: int | None
    tokens_evaluated: int | None
    tokens_cached: int | None
    prompt: str
    truncated: bool
    stop_type: str
    stopping_word: str
    has_new_line: bool
    timings: LlamaCppTimings
    completion_probabilities: list[LlamaCppProbability] | UnsetType = UNSET


class LlamaCppWriter:
    """Renders one answer with one choice."""

    def __init__(self, model: str, options: LlamaCppRenderOptions) -> None:
        self._model = model
        self._options = options
        self._finished: ChoiceFinished | None = None
        self._has_line_break = False

    @property
    def end(self) -> bytes:
        return b""

    @property
    def keepalive(self) -> bytes:
        return KEEPALIVE_COMMENT

    def render_error(self, error: DragomanError) -> bytes:
        return b"data: %s\n\n" % render_openai_error(error, Profile.OPENAI)

    def feed(self, event: Event) -> bytes:
        match event:
            case Started() | PromptTokens():
                return b""
            case TextDelta(text=text, tokens=tokens) | RefusalDelta(text=text, tokens=tokens):
                return self._render_chunk(text, tokens)
            case ChoiceFinished(tokens=tokens):
                self._finished = event
                return self._render_chunk("", tokens) if tokens else b""
            case Finished(usage, timings):
                assert self._finished is not None, "Finished comes after every choice's end"
                last = self._build_response("", (), self._finished, usage, timings)
                return b"data: %s\n\n" % self._encode(last)
            case _:
                # A raw prompt's answer has one text; other parts have only tokens.
                return self._render_chunk("", event.tokens) if event.tokens else b""

    def render_full(self, reply: Reply) -> bytes:
        choice = reply.choices[0]
        text = choice.join_text() + choice.join_refusal()
        return self._encode(
            self._build_response(text, choice.tokens, choice, reply.usage, reply.timings)
        )

    def _render_chunk(self, text: str, tokens: Sequence[Token]) -> bytes:
        self._has_line_break = self._has_line_break or "\n" in text
        chunk = LlamaCppChunk(
            0,
            replace_surrogates(text),
            self._list_ids(tokens),
            stop=False,
            completion_probabilities=self._build_probabilities(tokens),
        )
        return b"data: %s\n\n" % self._encode(chunk)

    def _build_response(
        self,
        text: str,
        tokens: Sequence[Token],
        finish: ChoiceFinished | Choice,
        usage: Usage,
        timings: Timings | None,
    ) -> LlamaCppResponse:
        stop = finish.stop
        return LlamaCppResponse(
            index=0,
            content=replace_surrogates(text),
            tokens=self._list_ids(tokens),
            stop=True,
            model=self._model,
            tokens_predicted=usage.completion,
            tokens_evaluated=usage.prompt,
            tokens_cached=usage.cached,
            prompt=replace_surrogates(self._options.prompt),
            truncated=finish.reason is FinishReason.CONTEXT_LENGTH,
            stop_type=_map_reason(finish),
            stopping_word=replace_surrogates(stop) if isinstance(stop, str) else "",
            has_new_line=self._has_line_break or "\n" in text,
            timings=_build_timings(usage, timings),
            completion_probabilities=self._build_probabilities(tokens),
        )

    def _list_ids(self, tokens: Sequence[Token]) -> list[int]:
        return [token.id for token in tokens] if self._options.tokens else []

    def _build_probabilities(
        self, tokens: Sequence[Token]
    ) -> list[LlamaCppProbability] | UnsetType:
        count = self._options.probabilities
        if not count:
            return UNSET
        return [
            LlamaCppProbability(
                token.id,
                replace_surrogates(token.text),
                list(token.utf8),
                clamp_logprob(token.logprob),
                [_build_alternative(alternative) for alternative in token.top[:count]],
            )
            for token in tokens
        ]

    def _encode(self, value: LlamaCppChunk | LlamaCppResponse) -> bytes:
        fields = self._options.fields
        if fields is None:
            return escape_line_breaks(msgspec.json.encode(value))
        whole = msgspec.to_builtins(value)
        found = {path: _find_field(whole, path) for path in fields}
        return escape_line_breaks(
            msgspec.json.encode(
                {path: field for path, field in found.items() if field is not UNSET}
            )
        )


def _find_field(value: object, path: str) -> object:
    """Return the field at a path with slashes; UNSET if there is none."""
    for name in path.split("/"):
        if not isinstance(value, dict):
            return UNSET
        value = cast("dict[str, object]", value).get(name, UNSET)
    return value


def _build_alternative(alternative: Alternative) -> LlamaCppAlternative:
    raw = (
        alternative.text.encode("utf-8", "replace") if alternative.raw is None else alternative.raw
    )
    return LlamaCppAlternative(
        alternative.id,
        replace_surrogates(alternative.text),
        list(raw),
        clamp_logprob(alternative.logprob),
    )


def _map_reason(finish: ChoiceFinished | Choice) -> str:
    match finish.reason:
        case FinishReason.STOP | FinishReason.CONTENT_FILTER:
            return "word" if isinstance(finish.stop, str) else "eos"
        case FinishReason.LENGTH | FinishReason.CONTEXT_LENGTH:
            return "limit"
        case FinishReason.ABORT | FinishReason.CACHE_THRESHOLD:
            return "none"


def _build_timings(usage: Usage, timings: Timings | None) -> LlamaCppTimings:
    if timings is None:
        return LlamaCppTimings(usage.prompt, usage.completion, usage.cached)
    prompt_seconds = timings.first_token
    return LlamaCppTimings(
        usage.prompt,
        usage.completion,
        usage.cached,
        None if prompt_seconds is None else prompt_seconds * 1000,
        timings.decode * 1000,
        usage.prompt / prompt_seconds if usage.prompt and prompt_seconds else None,
        usage.completion / timings.decode if usage.completion and timings.decode else None,
    )
