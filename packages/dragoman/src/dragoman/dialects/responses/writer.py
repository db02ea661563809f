"""Renders Responses: the events of a stream and the full object, from the same pieces.

    created  [queued]  in_progress+  item*  completed | incomplete | failed
    item:  output_item.added  content events  output_item.done

One part of the answer is one item, and one item is open at a time; parts without text
produce none. The output of a hosted shell is a second item of its call. Events are
numbered from 0 without gaps, including the repeated `in_progress` events that serve as
keepalives. The last event contains the full object.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

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
from ...core.reply import Choice, Reply, ReplyPart
from ...core.server_tools import ToolList
from ..interfaces import Header
from ..json_encoding import encode_field, encode_int, encode_string
from ..server_sent_events import DONE, KEEPALIVE_COMMENT
from . import item_writers
from .errors import render_error_fields, render_failure
from .item_writer_factory import ItemWriterFactory, OpenItem
from .item_writers import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    QUEUED,
    ApprovalItemWriter,
    ClientCallItemWriter,
    EventFields,
    ItemWriter,
    McpCallItemWriter,
    MessageItemWriter,
    ReasoningItemWriter,
)
from .render_options import Echo, ResponsesRenderOptions
from .stored_events import StoredEvent, build_event

_TEXT_DELTA_PREFIX = (
    b"event: response.output_text.delta\ndata: "
    b'{"type":"response.output_text.delta","sequence_number":%d,'
)
_TEXT_DELTA_SUFFIX = b',"logprobs":[]}\n\n'


class _AddedItem(Struct, frozen=True):
    item: OpenItem


class _DoneItem(Struct, frozen=True):
    item: Raw


class _Part(Struct, frozen=True):
    type: str


class _AddedPart(Struct, frozen=True):
    part: _Part


class _Delta(Struct, frozen=True):
    delta: str
    logprobs: tuple[Raw, ...] = ()


_DEFERRED = (ClientCallItemWriter, ApprovalItemWriter)
"""The writers of calls that are added only when they are complete."""


class ResponsesWriter:
    """Renders one answer, streamed or full. There is one choice."""

    def __init__(self, header: Header, options: ResponsesRenderOptions, echo: Echo) -> None:
        self._options = options
        self._item_writers = ItemWriterFactory(header.id, options)
        self._head = b'{"id":%s,"object":"response","created_at":%d,"status":"' % (
            encode_string(header.id),
            header.created,
        )
        self._model = encode_string(header.model)
        self._echo_fields = echo.render()
        self._sequence = 0
        self._open_kind: type[ReplyPart] | None = None
        self._open_item_writer: ItemWriter | None = None
        self._open_text: MessageItemWriter | None = None
        # Tokens before the first text of an item.
        self._early_tokens: list[Token] = []
        self._items: list[bytes] = []
        self._choice_finished = ChoiceFinished(0, FinishReason.ABORT)
        self._is_running = self._has_ended = False
        self._recorded: list[StoredEvent] | None = None
        # Terminal objects, cached because rendering one reads the clock and seals
        # reasoning.
        self._final_object: bytes | None = None
        self._failed_object: bytes | None = None

    @property
    def end(self) -> bytes:
        return DONE

    @property
    def keepalive(self) -> bytes:
        """Render a keepalive: a repeated `in_progress` event, or a comment after the
        last event.

        Each access consumes a sequence number, so access it once per keepalive that is
        sent.
        """
        if self._has_ended:
            return KEEPALIVE_COMMENT
        # No comment: the idle timeout of Codex counts only events (openai/codex#31539),
        # and openai-node rejects unknown ones.
        return self._render_start() or self._render_in_progress()

    @property
    def has_started(self) -> bool:
        """Whether any event has been rendered."""
        return self._sequence > 0

    @property
    def n_events(self) -> int:
        """The number of events that have been rendered, also by a writer before."""
        return self._sequence

    def start_recording(self) -> None:
        """Record all events that are rendered from now on, for `take_events`."""
        self._recorded = []

    def restore(
        self,
        events: Sequence[StoredEvent],
        calls: Sequence[ToolCall],
        open_part: ReplyPart | None,
    ) -> None:
        """Continue after the events of another writer.

        calls: the server's calls among them, with their outcomes.
        open_part: the part of the open item, if what follows continues it. Otherwise
            the item ends as incomplete.
        """
        self._item_writers.restore_sources(calls)
        self._sequence = len(events)
        added = _AddedItem(OpenItem(""))
        texts: list[str] = []
        logprobs: list[Raw] = []
        is_open = False
        for event in events:
            match event.type:
                case "response.in_progress":
                    self._is_running = True
                case "response.output_item.added":
                    added = msgspec.json.decode(event.data, type=_AddedItem)
                    texts = []
                    logprobs = []
                    is_open = True
                case "response.output_item.done":
                    done = msgspec.json.decode(event.data, type=_DoneItem)
                    self._items.append(bytes(done.item))
                    is_open = False
                case "response.content_part.added":
                    part = msgspec.json.decode(event.data, type=_AddedPart).part
                    if part.type == "refusal":
                        item = msgspec.structs.replace(added.item, is_refusal=True)
                        added = _AddedItem(item)
                case "response.shell_call_output_content.delta":
                    """The output is one batch of events with the end of its item."""
                case kind if kind.endswith(".delta"):
                    delta = msgspec.json.decode(event.data, type=_Delta)
                    texts.append(delta.delta)
                    logprobs += delta.logprobs
                case _:
                    """Others repeat what the item's end has."""
        if not is_open:
            return
        item = self._item_writers.restore(
            len(self._items), added.item, "".join(texts), logprobs, open_part
        )
        self._open_item_writer = item
        if open_part is None:
            self._close_item(INCOMPLETE)

    def take_events(self) -> list[StoredEvent]:
        """Return the events that were recorded since the last call."""
        events = self._recorded or []
        self._recorded = []
        return events

    def render_queued_events(self) -> bytes:
        """Render the first two events of a background response."""
        queued_object = self.render_queued()
        return self._render_lifecycle(b"created", queued_object) + self._render_lifecycle(
            QUEUED, queued_object
        )

    def render_queued(self) -> bytes:
        """Render the object of a queued response."""
        return self._render_response(QUEUED, [], None)

    def render_in_progress(self) -> bytes:
        """Render the object of a running response."""
        return self._render_response(IN_PROGRESS, [], None)

    def render_error(self, error: DragomanError) -> bytes:
        """Render both error events: some clients read only one of them. An open item
        never becomes done.
        """
        # Codex reads only `response.failed`, and OpenAI's SDKs raise an exception only
        # for `error`.
        start_events = self._render_start()
        error_event = self._render_event(b"error", render_error_fields(error))
        return (
            start_events
            + error_event
            + self._render_lifecycle(b"failed", self.render_failure(error))
            + DONE
        )

    def render_failure(self, error: DragomanError) -> bytes:
        """Render the final object of a stream that failed with `error`; the same bytes
        each time.
        """
        if self._failed_object is None:
            # The output of a failed response includes what was streamed: clients show
            # it, and `retrieve` must return the same.
            unfinished = (
                []
                if self._open_item_writer is None
                else [self._open_item_writer.render(INCOMPLETE)]
            )
            self._failed_object = self._render_response(
                b"failed", [*self._items, *unfinished], None, error=render_failure(error)
            )
        return self._failed_object

    def feed(self, event: Event) -> bytes:
        text = self._open_text
        if text is not None and type(event) is TextDelta and event.text:
            # The hot path, taken for nearly every token: one escape, one concatenation.
            text.texts.append(event.text)
            opening = _TEXT_DELTA_PREFIX % self._sequence
            self._sequence += 1
            return opening + text.delta_prefix + encode_string(event.text) + _TEXT_DELTA_SUFFIX
        match event:
            case Started():
                return self._render_start() + b"".join(map(self._write_list, event.tool_lists))
            case PromptTokens():
                return b""
            case ChoiceFinished(reason=reason):
                self._choice_finished = event
                return self._close_item(_map_status(reason))
            case Finished(usage):
                self._has_ended = True
                choice_finished = self._choice_finished
                response = self._render_final(
                    choice_finished.reason, self._items, usage, choice_finished.kv_transfer_params
                )
                return self._render_lifecycle(_map_status(choice_finished.reason), response)
            case _:
                return self._render_part(event)

    def render_full(self, reply: Reply) -> bytes:
        """Render the full object. For a streamed answer, byte-identical to that in its
        last event.
        """
        choice = reply.choices[0]
        # The items that were streamed are not rendered again: encryption has a random
        # nonce, so the bytes would differ.
        items = self._items if self.has_started else self._render_output(choice, reply.tool_lists)
        return self._render_final(choice.reason, items, reply.usage, choice.kv_transfer_params)

    def _render_part(self, event: Delta) -> bytes:
        match event:
            case TextDelta(text=text):
                return self._write_text(Text, text, event.tokens)
            case RefusalDelta(text=text):
                return self._write_text(Refusal, text, ())
            case ReasoningDelta(text=text, seal=seal):
                return self._write_text(Reasoning, text, (), seal)
            case ToolCallStart(id=id, name=name, custom=custom):
                close_events = self._close_item(COMPLETED)
                self._open_kind = ToolCall
                return close_events + self._start_item(
                    self._item_writers.create_call(len(self._items), id, name, custom)
                )
            case ToolCallDelta(arguments=text):
                delta = self._write_delta(text, ()) if text else b""
                item = self._open_item_writer
                if event.outcome is None or not isinstance(item, McpCallItemWriter):
                    return delta
                # It ends here: the next part begins only with the next turn.
                item.outcome = event.outcome
                return delta + self._close_item(COMPLETED)

    def _write_text(
        self, kind: type[ReplyPart], text: str, tokens: Sequence[Token], seal: str = ""
    ) -> bytes:
        """Write text. The first text of a part opens an item; the next part closes it,
        even one without text.

        seal: the signature of reasoning, which ends the reasoning; otherwise empty.
        """
        close_events = b"" if kind is self._open_kind else self._close_item(COMPLETED)
        self._open_kind = kind
        if self._open_item_writer is None:
            if not (text or seal) or (kind is Reasoning and self._options.hide_reasoning):
                self._early_tokens.extend(tokens)
                return close_events
            close_events += self._start_item(self._item_writers.create(len(self._items), kind))
            tokens = (*self._early_tokens, *tokens)
            self._early_tokens = []
        events = close_events + self._write_delta(text, tokens)
        if not seal:
            return events
        if isinstance(self._open_item_writer, ReasoningItemWriter):
            self._open_item_writer.seal = seal
        return events + self._close_item(COMPLETED)

    def _write_delta(self, text: str, tokens: Sequence[Token]) -> bytes:
        delta = None if self._open_item_writer is None else self._open_item_writer.add(text, tokens)
        return b"" if delta is None else self._render_event_fields(delta)

    def _start_item(self, item: ItemWriter) -> bytes:
        self._open_item_writer = item
        if isinstance(item, _DEFERRED):
            return b""
        if (
            isinstance(item, MessageItemWriter)
            and self._options.logprobs is None
            and self._recorded is None
        ):
            # Only text without logprobs has the fast path: logprobs are aligned with
            # the tokens of each delta. Recorded events have none: they take longer to
            # store than to render.
            self._open_text = item
        return self._render_item_event(b"added", item.render(IN_PROGRESS)) + b"".join(
            map(self._render_event_fields, item.begin())
        )

    def _write_list(self, tool_list: ToolList) -> bytes:
        item = self._item_writers.create_list(len(self._items), tool_list)
        events = self._render_item_event(b"added", item.render_added())
        events += b"".join(map(self._render_event_fields, item.list_events()))
        rendered = item.render()
        events += self._render_item_event(b"done", rendered)
        self._items.append(rendered)
        return events

    def _close_item(self, status: bytes) -> bytes:
        item = self._open_item_writer
        self._open_item_writer = None
        self._open_text = None
        self._open_kind = None
        self._early_tokens = []
        if item is None:
            return b""
        added = b""
        if isinstance(item, _DEFERRED):
            # Such a call is added only now: its type depends on the complete arguments.
            item.resolve()
            added = self._render_item_event(b"added", item.render_added())
        end_events = added + b"".join(map(self._render_event_fields, item.end()))
        rendered_item = item.render(status)
        done = self._render_item_event(b"done", rendered_item)
        self._items.append(rendered_item)
        if (next_item := item.build_next()) is None:
            return end_events + done
        return end_events + done + self._start_item(next_item) + self._close_item(COMPLETED)

    def _render_output(self, choice: Choice, tool_lists: Sequence[ToolList] = ()) -> list[bytes]:
        """Render the items of the full object. Only the last part can be incomplete."""
        items = [
            self._item_writers.create_list(i, tool_list).render()
            for i, tool_list in enumerate(tool_lists)
        ]
        for i, part in enumerate(choice.parts):
            is_hidden = isinstance(part, Reasoning) and self._options.hide_reasoning
            if not is_hidden and (isinstance(part, ToolCall) or part.text or _has_seal(part)):
                # Reasoning with a seal is complete, whatever ended the answer.
                is_cut = i == len(choice.parts) - 1 and not _has_seal(part)
                status = _map_status(choice.reason) if is_cut else COMPLETED
                item = self._item_writers.create_complete(len(items), part)
                items.append(item.render(status))
                if (next_item := item.build_next()) is not None:
                    items.append(next_item.render(COMPLETED))
        return items

    # Events.

    def _render_start(self) -> bytes:
        """Render `created` and `in_progress` unless they have been rendered."""
        if self._is_running:
            return b""
        self._is_running = True
        # A background response has sent `created` already, with `queued`.
        created = (
            b""
            if self.has_started
            else self._render_lifecycle(b"created", self.render_in_progress())
        )
        return created + self._render_in_progress()

    def _render_in_progress(self) -> bytes:
        return self._render_lifecycle(b"in_progress", self.render_in_progress())

    def _render_lifecycle(self, name: bytes, response: bytes) -> bytes:
        return self._render_event(b"response." + name, b'"response":' + response)

    def _render_item_event(self, name: bytes, item: bytes) -> bytes:
        fields = b'"output_index":%d,"item":%s' % (len(self._items), item)
        return self._render_event(b"response.output_item." + name, fields)

    def _render_event_fields(self, event: EventFields) -> bytes:
        name, fields = event
        return self._render_event(b"response." + name, fields)

    def _render_event(self, name: bytes, fields: bytes) -> bytes:
        # openai-node checks that these numbers have no gap, and a client that
        # reconnects asks for those above the last one.
        sequence = self._sequence
        self._sequence = self._sequence + 1
        if self._recorded is not None:
            self._recorded.append(build_event(sequence, name, fields))
        return b'event: %s\ndata: {"type":"%s","sequence_number":%d,%s}\n\n' % (
            name,
            name,
            sequence,
            fields,
        )

    # The object.

    def _render_final(
        self, reason: FinishReason, items: list[bytes], usage: Usage, transfer: str | None
    ) -> bytes:
        """Render the final object once, and cache it. transfer: the
        `kv_transfer_params`, as JSON.
        """
        if self._final_object is None:
            status = _map_status(reason)
            # Responses has no reason for an aborted answer, which is reported as
            # truncated: it is not complete.
            cause = (
                b"content_filter" if reason is FinishReason.CONTENT_FILTER else b"max_output_tokens"
            )
            incomplete_details = b'{"reason":"%s"}' % cause if status == INCOMPLETE else b"null"
            response = self._render_response(
                status, items, usage, incomplete_details=incomplete_details
            )
            # Added last, so that the object without it has exactly OpenAI's keys in
            # OpenAI's order.
            self._final_object = response[:-1] + encode_field("kv_transfer_params", transfer) + b"}"
        return self._final_object

    def _render_response(
        self,
        status: bytes,
        items: list[bytes],
        usage: Usage | None,
        *,
        error: bytes = b"null",
        incomplete_details: bytes = b"null",
    ) -> bytes:
        """Render a response object; all keys are always present. error,
        incomplete_details: as JSON.
        """
        completed = (
            encode_int(self._options.now())
            if status == COMPLETED and self._options.now is not None
            else b"null"
        )
        counts = b"null" if usage is None else item_writers.render_usage(usage)
        return b'%s%s","completed_at":%s,"error":%s,"incomplete_details":%s,"model":%s,"output":[%s],"usage":%s,%s}' % (  # noqa: E501
            self._head, status, completed, error, incomplete_details, self._model,
            b",".join(items), counts,
            self._echo_fields,
        )  # fmt: skip


def _has_seal(part: ReplyPart) -> bool:
    return isinstance(part, Reasoning) and part.seal != ""


def _map_status(reason: FinishReason) -> bytes:
    return COMPLETED if reason is FinishReason.STOP else INCOMPLETE
