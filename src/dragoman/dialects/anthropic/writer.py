"""Anthropic Messages on the wire: the events of a stream and the whole object, out of the same pieces.

    message_start  (content_block_start content_block_delta* content_block_stop)*  message_delta  message_stop

One block is open at a time: text, a thought with its signature at the end, or a call with its input. Text that is
empty opens no block. Knows neither HTTP nor where events come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from ...core.errors import DragomanError
from ...core.events import (
    ChoiceFinished,
    Delta,
    Edited,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ...core.message import Reasoning, Refusal, ToolCall
from ...core.reply import Choice, Part, Reply
from ..base import Header
from ..text import json_field, line_safe, number, printable, quoted, quoted_or_null
from .edits import applied_edits
from .errors import anthropic_error
from .tool_input import ToolInput

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


def unsigned(_: str) -> str:
    """The signature where nobody signs."""
    return ""


class MessagesView(Struct, frozen=True):
    """What the client asked to see.

    max_tokens: what it set, None for the rest of the context; an answer that had to end with fewer has filled the
    context. omit_thinking: thoughts show their signature alone. sign: makes the signature of a whole thought.
    tells_edits: say what was cleared of the conversation.
    """

    max_tokens: int | None = 0
    omit_thinking: bool = False
    sign: Callable[[str], str] = unsigned
    tells_edits: bool = False


DEFAULT_VIEW = MessagesView()


class _TextBlock:
    start = b'{"type":"text","text":""}'

    def __init__(self, index: int) -> None:
        self._opening = _delta_opening(index) + b'{"type":"text_delta","text":'

    def add(self, text: str) -> bytes:
        return self._opening + quoted(text) + b"}}\n\n"

    def end(self) -> bytes:
        return b""


class _ThinkingBlock:
    start = b'{"type":"thinking","thinking":"","signature":""}'

    def __init__(self, index: int, view: MessagesView) -> None:
        self._opening, self._view = _delta_opening(index), view
        self._thought: list[str] = []

    def add(self, text: str) -> bytes:
        self._thought.append(text)
        if self._view.omit_thinking:
            return b""
        return b'%s{"type":"thinking_delta","thinking":%s}}\n\n' % (self._opening, quoted(text))

    def end(self) -> bytes:
        signature = self._view.sign("".join(self._thought))
        return b'%s{"type":"signature_delta","signature":%s}}\n\n' % (self._opening, quoted(signature))


class _ToolUseBlock:
    """The first delta of an input is empty, as Anthropic sends it."""

    def __init__(self, index: int, id: str, name: str) -> None:
        self.start = b'{"type":"tool_use","id":%s,"name":%s,"input":{}}' % (quoted(id), quoted(name))
        self._opening = _delta_opening(index)
        self._input = ToolInput()

    def add(self, text: str) -> bytes:
        piece = self._input.feed(text)
        return self._delta(piece) if piece or not text else b""

    def end(self, *, cut: bool) -> bytes:
        rest = self._input.end(cut=cut)
        return self._delta(rest) if rest else b""

    def _delta(self, piece: str) -> bytes:
        return b'%s{"type":"input_json_delta","partial_json":%s}}\n\n' % (self._opening, quoted(piece))


_Block = _TextBlock | _ThinkingBlock | _ToolUseBlock


class MessagesWriter:
    """One answer, streamed or whole. There is one choice."""

    def __init__(self, header: Header, view: MessagesView = DEFAULT_VIEW) -> None:
        self._view = view
        self._head = b'"id":%s,"type":"message","role":"assistant","model":%s' % (
            quoted(header.id), quoted(header.model),
        )  # fmt: skip
        self._blocks = 0
        self._open: _Block | None = None
        self._text: _TextBlock | None = None
        self._called = self._refused = False
        self._end: ChoiceFinished | None = None
        self._edited: tuple[Edited, ...] = ()

    @property
    def end(self) -> bytes:
        return b""

    @property
    def keepalive(self) -> bytes:
        return PING

    def error(self, error: DragomanError) -> bytes:
        return _event(b"error", anthropic_error(error))

    def feed(self, event: Event) -> bytes:
        if self._text is not None and type(event) is TextDelta:
            # The path of nearly every token: its text escaped, one concatenation.
            return self._text.add(event.text) if event.text else b""
        if isinstance(event, Started | PromptTokens | ChoiceFinished | Finished):
            return self._frame(event)
        return self._part(event)

    def full(self, reply: Reply) -> bytes:
        choice, usage = reply.choices[0], reply.usage
        parts = [part for part in choice.parts if isinstance(part, ToolCall) or part.text]
        refused = any(isinstance(part, Refusal) for part in parts)
        stop = self._stop(choice.reason, choice.stop, choice.called_tools, refused, usage)
        content = b",".join(self._content(parts, choice))
        return b'{%s,"content":[%s],%s,"usage":{%s,"service_tier":"standard"}%s%s}' % (
            self._head, content, stop, _usage(usage), self._edits(reply.edited),
            json_field("kv_transfer_params", reply.kv_transfer_params),
        )  # fmt: skip

    def _frame(self, event: Started | PromptTokens | ChoiceFinished | Finished) -> bytes:
        match event:
            case Started():
                self._edited = event.edited
                return self._start(event)
            case ChoiceFinished():
                self._end = event
                return self._close(cut=_was_cut(event.reason, event.stop))
            case Finished(usage):
                return self._finish(usage)
            case PromptTokens():
                return b""

    def _part(self, event: Delta) -> bytes:
        match event:
            case TextDelta(text=text):
                return self._say(text)
            case RefusalDelta(text=text):
                self._refused = self._refused or bool(text)
                return self._say(text)
            case ReasoningDelta(text=text):
                return self._think(text)
            case ToolCallStart(id=id, name=name):
                self._called = True
                closed = self._close(cut=False)
                return closed + self._begin(_ToolUseBlock(self._blocks, id, name), "")
            case ToolCallDelta(arguments=text):
                return self._open.add(text) if self._open is not None and text else b""

    def _start(self, event: Started) -> bytes:
        usage = _usage(Usage(event.prompt_tokens, 0, event.cached_tokens))
        empty = b'"content":[],"stop_reason":null,"stop_sequence":null'
        message = b'{%s,%s,"usage":{%s,"service_tier":"standard"}}' % (self._head, empty, usage)
        return _event(b"message_start", b'{"type":"message_start","message":%s}' % message)

    def _finish(self, usage: Usage) -> bytes:
        end = self._end or ChoiceFinished(0, FinishReason.ABORT)
        stop = self._stop(end.reason, end.stop, self._called, self._refused, usage)
        transfer = json_field("kv_transfer_params", end.kv_transfer_params)
        payload = b'{"type":"message_delta","delta":{%s},"usage":{%s}%s%s}' % (
            stop, _usage(usage), self._edits(self._edited), transfer,
        )  # fmt: skip
        return _event(b"message_delta", payload) + MESSAGE_STOP

    def _edits(self, edited: Sequence[Edited]) -> bytes:
        return b',"context_management":' + applied_edits(edited) if self._view.tells_edits else b""

    def _say(self, text: str) -> bytes:
        if not text:
            return b""
        if self._text is not None:
            return self._text.add(text)
        closed = self._close(cut=False)
        self._text = _TextBlock(self._blocks)
        return closed + self._begin(self._text, text)

    def _think(self, text: str) -> bytes:
        if not text:
            return b""
        if isinstance(self._open, _ThinkingBlock):
            return self._open.add(text)
        closed = self._close(cut=False)
        return closed + self._begin(_ThinkingBlock(self._blocks, self._view), text)

    def _begin(self, block: _Block, text: str) -> bytes:
        """Open a block; none is. text: the first of it."""
        self._open = block
        payload = b'{"type":"content_block_start","index":%d,"content_block":%s}' % (self._blocks, block.start)
        return _event(b"content_block_start", payload) + block.add(text)

    def _close(self, *, cut: bool) -> bytes:
        """cut: the answer was cut off within this block."""
        block, self._open, self._text = self._open, None, None
        if block is None:
            return b""
        stop = _event(b"content_block_stop", b'{"type":"content_block_stop","index":%d}' % self._blocks)
        self._blocks += 1
        return (block.end(cut=cut) if isinstance(block, _ToolUseBlock) else block.end()) + stop

    def _content(self, parts: list[Part], choice: Choice) -> Iterator[bytes]:
        """The blocks of the whole. Text and refusals that follow one another are one."""
        text: list[str] = []
        for i, part in enumerate(parts):
            if not isinstance(part, Reasoning | ToolCall):
                text.append(part.text)
                continue
            if text:
                yield _whole_text(text)
                text = []
            if isinstance(part, Reasoning):
                yield self._whole_thought(part)
            else:
                cut = i == len(parts) - 1 and _was_cut(choice.reason, choice.stop)
                yield _whole_call(part, cut)
        if text:
            yield _whole_text(text)

    def _whole_thought(self, part: Reasoning) -> bytes:
        shown = "" if self._view.omit_thinking else part.text
        return b'{"type":"thinking","thinking":%s,"signature":%s}' % (quoted(shown), quoted(self._view.sign(part.text)))

    def _stop(self, reason: FinishReason, stop: str | int | None, called: bool, refused: bool, usage: Usage) -> bytes:
        matched = stop if reason is FinishReason.STOP and isinstance(stop, str) and not refused else None
        word = self._stop_reason(reason, matched, called, refused, usage)
        said = b'"stop_reason":"%s","stop_sequence":%s' % (word, quoted_or_null(matched))
        if word != b"refusal":
            return said
        return said + b',"stop_details":{"type":"refusal","category":null,"explanation":null}'

    def _stop_reason(
        self, reason: FinishReason, matched: str | None, called: bool, refused: bool, usage: Usage
    ) -> bytes:
        """What was ended from outside was cut off: never to be taken for complete, and no other word says so."""
        match reason:
            case FinishReason.CONTENT_FILTER:
                return b"refusal"
            case FinishReason.ABORT:
                return b"max_tokens"
            case FinishReason.LENGTH:
                most = self._view.max_tokens
                full = most is None or usage.completion < most
                return b"model_context_window_exceeded" if full else b"max_tokens"
            case FinishReason.STOP if refused:
                return b"refusal"
            case FinishReason.STOP if matched is not None:
                return b"stop_sequence"
            case FinishReason.STOP:
                return b"tool_use" if called else b"end_turn"


def _was_cut(reason: FinishReason, stop: str | int | None) -> bool:
    return reason is not FinishReason.STOP or isinstance(stop, str)


def _whole_text(pieces: list[str]) -> bytes:
    return b'{"type":"text","text":%s}' % quoted("".join(pieces))


def _whole_call(call: ToolCall, cut: bool) -> bytes:
    """The input is what the stream's pieces come to, not what the model may have meant."""
    input = ToolInput()
    input.feed(call.arguments)
    input.end(cut=cut)
    value = line_safe(printable(input.value).encode())
    return b'{"type":"tool_use","id":%s,"name":%s,"input":%s}' % (quoted(call.id), quoted(call.name), value)


def _usage(usage: Usage) -> bytes:
    """Prompt tokens that came out of the cache are counted apart. A zero is a zero, unknown is null or absent."""
    counts = b'"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":%s,"output_tokens":%d' % (
        usage.prompt - (usage.cached or 0), number(usage.cached), usage.completion,
    )  # fmt: skip
    if usage.reasoning is None:
        return counts
    return counts + b',"output_tokens_details":{"thinking_tokens":%d}' % usage.reasoning


def _event(name: bytes, payload: bytes) -> bytes:
    """The line with the name is not a luxury: the official SDKs drop an event without it."""
    return b"event: %s\ndata: %s\n\n" % (name, payload)


def _delta_opening(index: int) -> bytes:
    return b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":' % index
