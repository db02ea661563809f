"""Renders answers of Gemini's generateContent, as a stream or as one object.

    the stream:  chunk*  last        a chunk has new parts of candidates; the last has all finish reasons and the usage

Texts of chunks are pieces, function calls are complete. The signature of reasoning is on
the part behind it. The full object is what the chunks add up to.
"""  # noqa: E501

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from enum import Enum

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
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ...core.message import Reasoning, Refusal, Text, ToolCall
from ...core.reply import Choice, Reply
from ..interfaces import Header
from ..json_encoding import clamp_logprob, encode_string, escape_line_breaks, replace_surrogates
from ..tool_input import is_cut_off, render_whole_input
from .errors import render_gemini_error

Seal = Callable[[str, str], str]
"""Seals reasoning with its vendor's seal; the result is ASCII."""


class Framing(Enum):
    """The format of a stream: server-sent events, or one JSON array."""

    EVENTS = "events"
    ARRAY = "array"


class GeminiRenderOptions(Struct, frozen=True):
    """The response options.

    includes_thoughts: send reasoning as parts; otherwise it is only in signatures.
    logprobs: maximum alternatives for each token; None omits logprobs.
    seal: creates signatures; None omits them.
    framing: the format of the stream.
    """

    includes_thoughts: bool = False
    logprobs: int | None = None
    seal: Seal | None = None
    framing: Framing = Framing.EVENTS


class GeminiLogprob(Struct, frozen=True):
    token: str
    logProbability: float
    tokenId: int | UnsetType = UNSET


class GeminiTopLogprobs(Struct, frozen=True):
    candidates: list[GeminiLogprob]


class GeminiLogprobs(Struct, frozen=True):
    """The sampled tokens, and the most likely ones at the position of each."""

    chosenCandidates: list[GeminiLogprob]
    topCandidates: list[GeminiTopLogprobs]


_REASONS = {
    FinishReason.STOP: "STOP",
    FinishReason.LENGTH: "MAX_TOKENS",
    FinishReason.CONTEXT_LENGTH: "MAX_TOKENS",
    FinishReason.CONTENT_FILTER: "SAFETY",
    FinishReason.ABORT: "OTHER",
    FinishReason.CACHE_THRESHOLD: "OTHER",
}


class GeminiWriter:
    """Renders one answer, streamed or full."""

    def __init__(self, header: Header, options: GeminiRenderOptions) -> None:
        self._options = options
        self._candidates: list[_Candidate] = []
        self._tail = b',"modelVersion":%s,"responseId":%s}' % (
            encode_string(header.model),
            encode_string(header.id),
        )
        self._has_sent = False

    def feed(self, event: Event) -> bytes:  # noqa: PLR0911 - a table
        match event:
            case TextDelta(choice, text, tokens) | RefusalDelta(choice, text, tokens):
                return self._render_parts(choice, self._candidates[choice].add_text(text, tokens))
            case ReasoningDelta(choice, text, tokens, seal):
                parts = self._candidates[choice].add_reasoning(text, tokens, seal)
                return self._render_parts(choice, parts)
            case ToolCallStart(choice, id, name, tokens):
                return self._render_parts(
                    choice, self._candidates[choice].start_call(id, name, tokens)
                )
            case ToolCallDelta(choice, arguments, tokens):
                self._candidates[choice].add_arguments(arguments, tokens)
                return b""
            case Started(choices=choices):
                self._candidates = [_Candidate(i, self._options) for i in range(choices)]
                return b""
            case PromptTokens():
                return b""
            case ChoiceFinished(choice):
                return self._render_parts(choice, self._candidates[choice].finish(event))
            case Finished(usage):
                # Clients expect the usage in the chunk with the finish reason.
                return self._frame(
                    self._render_object(
                        [candidate.render_end() for candidate in self._candidates], usage
                    )
                )

    def render_full(self, reply: Reply) -> bytes:
        candidates = [
            _Candidate(i, self._options).render_whole(choice)
            for i, choice in enumerate(reply.choices)
        ]
        return self._render_object(candidates, reply.usage)

    def render_error(self, error: DragomanError) -> bytes:
        return self._frame(render_gemini_error(error)) + self.end

    @property
    def end(self) -> bytes:
        if self._options.framing is Framing.EVENTS:
            return b""
        return b"\n]\n" if self._has_sent else b"[]\n"

    @property
    def keepalive(self) -> bytes:
        # A comment would be an error: Google's SDK parses every line that is no data.
        return b"\n"

    def _render_parts(self, choice: int, parts: list[bytes]) -> bytes:
        if not parts:
            return b""
        return self._frame(
            self._render_object([self._candidates[choice].render_chunk(parts)], None)
        )

    def _render_object(self, candidates: Sequence[bytes], usage: Usage | None) -> bytes:
        usage_field = b"" if usage is None else _render_usage(usage)
        return b'{"candidates":[%s]%s%s' % (b",".join(candidates), usage_field, self._tail)

    def _frame(self, value: bytes) -> bytes:
        if self._options.framing is Framing.EVENTS:
            return b"data: %s\n\n" % value
        prefix = b",\n" if self._has_sent else b"["
        self._has_sent = True
        return prefix + value


class _Candidate:
    """A candidate: turns its events, or the parts of a whole answer, into Gemini's
    parts.

    The parts of one event may be several, since a call is rendered when it is complete.
    """

    def __init__(self, index: int, options: GeminiRenderOptions) -> None:
        self._index = index
        self._options = options
        self._call: ToolCallStart | None = None
        self._arguments: list[str] = []
        self._thoughts: list[str] = []
        self._vendor_seal = ""
        self._tokens: list[Token] = []
        """Tokens whose logprobs have not been sent."""
        self._logprobs = _LogprobSum()
        self._finish = ChoiceFinished(index, FinishReason.ABORT)

    def add_text(self, text: str, tokens: Sequence[Token]) -> list[bytes]:
        parts = self._close_call(is_incomplete=False)
        self._add_tokens(tokens)
        if text:
            parts.append(_render_text(text, self._take_signature()))
        return parts

    def add_reasoning(self, text: str, tokens: Sequence[Token], seal: str) -> list[bytes]:
        parts = self._close_call(is_incomplete=False)
        self._add_tokens(tokens)
        # A signature covers one part of reasoning; a second one has its own.
        if self._vendor_seal:
            parts += self._flush_signature()
        if text and self._options.includes_thoughts:
            parts.append(_render_thought(text))
        self._thoughts.append(text)
        self._vendor_seal = seal
        return parts

    def start_call(self, id: str, name: str, tokens: Sequence[Token]) -> list[bytes]:
        parts = self._close_call(is_incomplete=False)
        self._call = ToolCallStart(self._index, id, name)
        self._add_tokens(tokens)
        return parts

    def add_arguments(self, arguments: str, tokens: Sequence[Token]) -> None:
        self._arguments.append(arguments)
        self._add_tokens(tokens)

    def finish(self, event: ChoiceFinished) -> list[bytes]:
        self._finish = event
        parts = self._close_call(is_incomplete=is_cut_off(event.reason, event.stop))
        self._add_tokens(event.tokens)
        return parts + self._flush_signature()

    def render_chunk(self, parts: Sequence[bytes]) -> bytes:
        return b"{%s%s}" % (_render_content(self._index, parts), self._take_logprobs())

    def render_end(self, parts: Sequence[bytes] = ()) -> bytes:
        """Render the end, with the parts that no chunk has carried."""
        return b"{%s%s%s%s}" % (
            _render_content(self._index, parts or (_EMPTY,)),
            _render_reason(self._finish.reason),
            self._logprobs.render_average(),
            self._take_logprobs(),
        )

    def render_whole(self, choice: Choice) -> bytes:
        parts: list[bytes] = []
        for part in choice.parts:
            match part:
                case Reasoning(text, tokens, seal):
                    parts += self.add_reasoning(text, tokens, seal)
                case ToolCall(id, name, arguments, tokens):
                    parts += self.start_call(id, name, tokens)
                    self.add_arguments(arguments, ())
                case Text(text, tokens) | Refusal(text, tokens):
                    parts += self.add_text(text, tokens)
        parts += self.finish(
            ChoiceFinished(self._index, choice.reason, choice.stop, choice.trailing_tokens)
        )
        return self.render_end(parts)

    def _flush_signature(self) -> list[bytes]:
        signature = self._take_signature()
        return [_render_text("", signature)] if signature else []

    def _take_signature(self) -> bytes:
        text = "".join(self._thoughts)
        seal = self._vendor_seal
        self._thoughts.clear()
        self._vendor_seal = ""
        return _render_signature(text, seal, self._options.seal)

    def _close_call(self, *, is_incomplete: bool) -> list[bytes]:
        call = self._call
        if call is None:
            return []
        self._call = None
        arguments = "".join(self._arguments)
        self._arguments.clear()
        value = render_whole_input(arguments, is_incomplete=is_incomplete)
        return (
            []
            if value is None
            else [_render_call(call.id, call.name, value, self._take_signature())]
        )

    def _add_tokens(self, tokens: Sequence[Token]) -> None:
        if self._options.logprobs is not None:
            self._tokens.extend(tokens)
            self._logprobs.add(tokens)

    def _take_logprobs(self) -> bytes:
        rendered = _render_logprobs(self._tokens, self._options.logprobs)
        self._tokens.clear()
        return rendered


class _LogprobSum:
    """The mean log-probability of an answer's tokens."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, tokens: Sequence[Token]) -> None:
        known = [token.logprob for token in tokens if token.logprob is not None]
        finite = [value for value in known if math.isfinite(value)]
        # One by one, so that a stream and a whole answer round alike.
        for value in finite:
            self._sum += value
        self._count += len(finite)

    def render_average(self) -> bytes:
        if not self._count:
            return b""
        return b',"avgLogprobs":' + msgspec.json.encode(self._sum / self._count)


_EMPTY = b'{"text":""}'


def _render_content(index: int, parts: Sequence[bytes]) -> bytes:
    return b'"content":{"parts":[%s],"role":"model"},"index":%d' % (b",".join(parts), index)


def _render_reason(reason: FinishReason) -> bytes:
    return b',"finishReason":"%s"' % _REASONS[reason].encode()


def _render_text(text: str, signature: bytes) -> bytes:
    return b'{"text":%s%s}' % (encode_string(text), signature)


def _render_thought(text: str) -> bytes:
    return b'{"text":%s,"thought":true}' % encode_string(text)


def _render_call(id: str, name: str, arguments: bytes, signature: bytes) -> bytes:
    return b'{"functionCall":{"id":%s,"name":%s,"args":%s}%s}' % (
        encode_string(id),
        encode_string(name),
        arguments,
        signature,
    )


def _render_signature(text: str, vendor_seal: str, seal: Seal | None) -> bytes:
    if seal is None or not (text or vendor_seal):
        return b""
    return b',"thoughtSignature":"%s"' % base64.b64encode(seal(text, vendor_seal).encode())


def _render_logprobs(tokens: Sequence[Token], top: int | None) -> bytes:
    if top is None or not tokens:
        return b""
    result = GeminiLogprobs(
        [_build_logprob(token) for token in tokens],
        [GeminiTopLogprobs([_build_logprob(each) for each in token.top[:top]]) for token in tokens],
    )
    return b',"logprobsResult":' + escape_line_breaks(msgspec.json.encode(result))


def _build_logprob(token: Token | Alternative) -> GeminiLogprob:
    return GeminiLogprob(
        replace_surrogates(token.text),
        clamp_logprob(token.logprob),
        UNSET if token.id < 0 else token.id,
    )


def _render_usage(usage: Usage) -> bytes:
    """Render the known counts. `candidatesTokenCount` excludes reasoning."""
    thoughts = usage.reasoning
    answer = usage.completion
    if thoughts is not None and answer is not None:
        # An upstream may count reasoning otherwise than the answer it is a part of.
        thoughts = min(thoughts, answer)
        answer -= thoughts
    total = None
    if usage.prompt is not None and usage.completion is not None:
        total = usage.prompt + usage.completion
    counts = (
        (b"promptTokenCount", usage.prompt),
        (b"candidatesTokenCount", answer),
        (b"totalTokenCount", total),
        (b"cachedContentTokenCount", usage.cached),
        (b"thoughtsTokenCount", thoughts),
    )
    known = [b'"%s":%d' % (name, count) for name, count in counts if count is not None]
    return b',"usageMetadata":{%s}' % b",".join(known)
