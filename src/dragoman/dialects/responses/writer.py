"""Responses on the wire: the events of a stream and the whole object, out of the same pieces.

    created  [queued]  in_progress+  item*  completed | incomplete | failed
    item:  output_item.added  what it says  output_item.done

One part of the answer is one item, and one item is open at a time; parts without text are none. Events are numbered
from 0 without a gap, the repeated `in_progress` that keeps clients waiting too. The last event carries the whole
object. Knows neither HTTP nor where events come from.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import DragomanError
from ...core.events import (
    ChoiceFinished,
    Delta,
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
from ...core.reply import Choice, Part, Reply
from ..base import Header
from ..envelope import COMMENT, DONE
from ..text import json_field, number, quoted
from . import pieces
from .echo import Echo
from .errors import error_fields, failed_by
from .opened import BEGUN, CUT, QUEUED, WHOLE, Opened, Opener, OpenMessage, Said
from .view import ResponsesView

_TEXT_OPENING = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":%d,'
_TEXT_CLOSING = b',"logprobs":[]}\n\n'


class ResponsesWriter:
    """One answer, streamed or whole. There is one choice."""

    def __init__(self, header: Header, view: ResponsesView, echo: Echo) -> None:
        self._view, self._opener = view, Opener(header.id, view)
        self._head = b'{"id":%s,"object":"response","created_at":%d,"status":"' % (quoted(header.id), header.created)
        self._model = quoted(header.model)
        self._echo = echo.fields()
        self._sequence = 0
        self._kind: type[Part] | None = None
        self._open: Opened | None = None
        self._text: OpenMessage | None = None
        # Of a text that has not begun.
        self._early: list[Token] = []
        self._items: list[bytes] = []
        self._end = ChoiceFinished(0, FinishReason.ABORT)
        self._running = self._ended = False
        # The objects it ends with. Made once: a time is read and thoughts are sealed in making them.
        self._whole: bytes | None = None
        self._failed: bytes | None = None

    @property
    def end(self) -> bytes:
        return DONE

    @property
    def keepalive(self) -> bytes:
        """Takes a sequence number each time: to be read once for each time that it is sent.

        Behind the last event there may be no other: a comment then.
        """
        if self._ended:
            return COMMENT
        return self._begin() or self._in_progress()

    @property
    def begun(self) -> bool:
        """Whether any event was written."""
        return self._sequence > 0

    def queue(self) -> bytes:
        """The first two events of a response that runs in the background."""
        waiting = self.waiting()
        return self._lifecycle(b"created", waiting) + self._lifecycle(QUEUED, waiting)

    def waiting(self) -> bytes:
        """The object of a response that is in the queue."""
        return self._response(QUEUED, [], None)

    def running(self) -> bytes:
        """The object of a response that is being made."""
        return self._response(BEGUN, [], None)

    def error(self, error: DragomanError) -> bytes:
        """Both events, since each is the only one that some clients read. An open item never becomes done."""
        begun = self._begin()
        told = self._event(b"error", error_fields(error))
        return begun + told + self._lifecycle(b"failed", self.failure(error)) + DONE

    def failure(self, error: DragomanError) -> bytes:
        """The object that `error` ends the stream with; the same bytes each time."""
        if self._failed is None:
            unfinished = [] if self._open is None else [self._open.item(CUT)]
            self._failed = self._response(b"failed", [*self._items, *unfinished], None, error=failed_by(error))
        return self._failed

    def feed(self, event: Event) -> bytes:
        text = self._text
        if text is not None and type(event) is TextDelta and event.text:
            # The path of nearly every token: its text escaped, one concatenation.
            text.texts.append(event.text)
            opening = _TEXT_OPENING % self._sequence
            self._sequence += 1
            return opening + text.delta + quoted(event.text) + _TEXT_CLOSING
        if isinstance(event, Started | PromptTokens | ChoiceFinished | Finished):
            return self._frame(event)
        return self._part(event)

    def full(self, reply: Reply) -> bytes:
        """The object. Of an answer that is streamed, the very bytes that its last event will carry or has carried."""
        choice = reply.choices[0]
        items = self._items if self.begun else self._output(choice)
        return self._final(choice.reason, items, reply.usage, choice.kv_transfer_params)

    def _frame(self, event: Started | PromptTokens | ChoiceFinished | Finished) -> bytes:
        match event:
            case Started():
                return self._begin()
            case ChoiceFinished(reason=reason):
                self._end = event
                return self._close(_status(reason))
            case Finished(usage):
                self._ended = True
                end = self._end
                response = self._final(end.reason, self._items, usage, end.kv_transfer_params)
                return self._lifecycle(_status(end.reason), response)
            case PromptTokens():
                return b""

    def _part(self, event: Delta) -> bytes:
        match event:
            case TextDelta(text=text):
                return self._say(Text, text, event.tokens)
            case RefusalDelta(text=text):
                return self._say(Refusal, text, ())
            case ReasoningDelta(text=text):
                return self._say(Reasoning, text, ())
            case ToolCallStart(id=id, name=name, custom=custom):
                closed = self._close(WHOLE)
                self._kind = ToolCall
                return closed + self._open_item(self._opener.call(len(self._items), id, name, custom))
            case ToolCallDelta(arguments=text):
                return self._add(text, ())

    def _say(self, kind: type[Part], text: str, tokens: Sequence[Token]) -> bytes:
        """An item is opened by the first text of its part, and closed by the next part, even by one without text."""
        closed = b"" if kind is self._kind else self._close(WHOLE)
        self._kind = kind
        if self._open is None:
            if not text or (kind is Reasoning and self._view.hide_reasoning):
                self._early.extend(tokens)
                return closed
            closed += self._open_item(self._opener.open(len(self._items), kind))
            tokens, self._early = (*self._early, *tokens), []
        return closed + self._add(text, tokens)

    def _add(self, text: str, tokens: Sequence[Token]) -> bytes:
        said = None if self._open is None else self._open.add(text, tokens)
        return b"" if said is None else self._said(said)

    def _open_item(self, item: Opened) -> bytes:
        self._open = item
        if isinstance(item, OpenMessage) and self._view.logprobs is None:
            self._text = item
        return self._item_event(b"added", item.item(BEGUN)) + b"".join(map(self._said, item.begin()))

    def _close(self, status: bytes) -> bytes:
        item, self._open, self._text, self._kind = self._open, None, None, None
        self._early = []
        if item is None:
            return b""
        said = b"".join(map(self._said, item.end()))
        whole = item.item(status)
        done = self._item_event(b"done", whole)
        self._items.append(whole)
        return said + done

    def _output(self, choice: Choice) -> list[bytes]:
        """The items of the whole. Only the part that the answer ended in can have been cut off."""
        items: list[bytes] = []
        for i, part in enumerate(choice.parts):
            hidden = isinstance(part, Reasoning) and self._view.hide_reasoning
            if not hidden and (isinstance(part, ToolCall) or part.text):
                status = _status(choice.reason) if i == len(choice.parts) - 1 else WHOLE
                items.append(self._opener.whole(len(items), part).item(status))
        return items

    # Events.

    def _begin(self) -> bytes:
        """What says that the response is being made, if that was not yet said."""
        if self._running:
            return b""
        self._running = True
        created = b"" if self.begun else self._lifecycle(b"created", self.running())
        return created + self._in_progress()

    def _in_progress(self) -> bytes:
        return self._lifecycle(b"in_progress", self.running())

    def _lifecycle(self, name: bytes, response: bytes) -> bytes:
        return self._event(b"response." + name, b'"response":' + response)

    def _item_event(self, name: bytes, item: bytes) -> bytes:
        place = b'"output_index":%d,"item":%s' % (len(self._items), item)
        return self._event(b"response.output_item." + name, place)

    def _said(self, said: Said) -> bytes:
        name, fields = said
        return self._event(b"response." + name, fields)

    def _event(self, name: bytes, fields: bytes) -> bytes:
        sequence, self._sequence = self._sequence, self._sequence + 1
        return b'event: %s\ndata: {"type":"%s","sequence_number":%d,%s}\n\n' % (name, name, sequence, fields)

    # The object.

    def _final(self, reason: FinishReason, items: list[bytes], usage: Usage, transfer: str | None) -> bytes:
        """transfer: the `kv_transfer_params`, as JSON."""
        if self._whole is None:
            status = _status(reason)
            cut = b'{"reason":"%s"}' % _cut_by(reason) if status == CUT else b"null"
            response = self._response(status, items, usage, cut=cut)
            self._whole = response[:-1] + json_field("kv_transfer_params", transfer) + b"}"
        return self._whole

    def _response(
        self, status: bytes, items: list[bytes], usage: Usage | None, *, error: bytes = b"null", cut: bytes = b"null"
    ) -> bytes:
        """All keys are always there. error, cut: as JSON."""
        completed = number(self._view.now()) if status == WHOLE and self._view.now is not None else b"null"
        counts = b"null" if usage is None else pieces.usage(usage)
        return b'%s%s","completed_at":%s,"error":%s,"incomplete_details":%s,"model":%s,"output":[%s],"usage":%s,%s}' % (
            self._head, status, completed, error, cut, self._model, b",".join(items), counts, self._echo,
        )  # fmt: skip


def _status(reason: FinishReason) -> bytes:
    return WHOLE if reason is FinishReason.STOP else CUT


def _cut_by(reason: FinishReason) -> bytes:
    """There is no word for what was ended from outside: cut off, and never to be taken for complete."""
    return b"content_filter" if reason is FinishReason.CONTENT_FILTER else b"max_output_tokens"
