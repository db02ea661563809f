"""Reads an upstream's Responses response: its events, or the response object that a
server sent instead of them. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from ...core.errors import EngineError
from ...core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    Usage,
)
from ...core.message import (
    SealKind,
)
from .answer_items import CallItem, ItemSequencer, TextItem, TextKind, render_arguments
from .content_parts import join_content, read_content
from .errors import build_event_error, read_error, read_error_event
from .event_decoding import build_decoder, clean_text, decode_data
from .request_warnings import RequestWarnings

log = logging.getLogger(__name__)


_CALLS = ("function_call", "custom_tool_call")


_INCOMPLETE_REASONS = {
    "max_output_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}


class _InputDetails(Struct, frozen=True, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(Struct, frozen=True, gc=False):
    reasoning_tokens: int | None = None


class _Usage(Struct, frozen=True, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Reason(Struct, frozen=True):
    reason: str | None = None


class _Item(Struct, frozen=True):
    """An output item. arguments: JSON text, or the object itself."""

    type: str | None = None
    id: str | int | None = None
    call_id: str | int | None = None
    name: str | None = None
    arguments: Any = None
    input: Any = None
    encrypted_content: str | None = None
    content: Any = None
    summary: Any = None


class _Response(Struct, frozen=True):
    """A response. output_text: the text of `output`, a convenience of the SDKs that
    some servers send.
    """

    status: str | None = None
    error: Any = None
    incomplete_details: _Reason | None = None
    usage: _Usage | None = None
    output: list[_Item | None] | None = None
    output_text: str | None = None
    type: str | None = None
    message: Any = None


class _WireEvent(Struct, frozen=True):
    """Any event; `type` selects the fields that apply. The fields of an error are
    either here or in `error`.

    object_type: of a whole response in place of an event.
    part, text, refusal, arguments, input: of events that end a part or a call.
    """

    type: str | None = None
    object_type: str | None = field(name="object", default=None)
    sequence_number: int | None = None
    output_index: int | None = None
    item_id: str | int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item: _Item | None = None
    delta: Any = None
    part: Any = None
    text: Any = None
    refusal: Any = None
    name: str | None = None
    arguments: Any = None
    input: Any = None
    response: _Response | None = None
    error: Any = None
    message: Any = None
    code: str | int | None = None
    param: str | None = None


_decoder = build_decoder(_WireEvent)
_response_decoder = build_decoder(_Response)


class _Group(StrEnum):
    """The texts of an item, each a list of parts."""

    TEXT = "text"
    REFUSAL = "refusal"
    CONTENT = "content"
    SUMMARY = "summary"


_KINDS: dict[_Group, TextKind] = {
    _Group.TEXT: TextDelta,
    _Group.REFUSAL: RefusalDelta,
    _Group.CONTENT: ReasoningDelta,
    _Group.SUMMARY: ReasoningDelta,
}
_TEXT_EVENTS = {
    "response.output_text": _Group.TEXT,
    "response.refusal": _Group.REFUSAL,
    "response.reasoning": _Group.CONTENT,
    "response.reasoning_text": _Group.CONTENT,
    "response.reasoning_summary": _Group.SUMMARY,
    "response.reasoning_summary_text": _Group.SUMMARY,
}
_CALL_EVENTS = ("response.function_call_arguments", "response.custom_tool_call_input")
_PART_EVENTS = ("response.content_part", "response.reasoning_summary_part")


class _OpenItem:
    """What has been received of an output item.

    call: the call of an item that is one.
    has_start: whether its start has been received; some servers send only the rest.
    parts: the texts of each group, by the index of the part.
    """

    def __init__(self, start: _Item, index: int | None, *, has_start: bool) -> None:
        self.type = start.type
        self.id = start.id
        self.call_id = start.call_id
        self.index = index
        self.has_start = has_start
        self.is_done = False
        self.is_sealed = False
        self.call: CallItem | None = None
        self.parts: dict[tuple[_Group, int], TextItem] = {}

    def list_parts(self, group: _Group) -> list[TextItem]:
        return [part for (other, _), part in self.parts.items() if other is group]

    def find_part(self, group: _Group, index: int | None) -> TextItem:
        """Find a part, or begin one. Without an index, it is the last one."""
        if index is None:
            index = max((i for other, i in self.parts if other is group), default=0)
        return self.parts.setdefault((group, index), TextItem(_KINDS[group]))

    def begin_part(self, group: _Group) -> TextItem:
        indexes = [index for other, index in self.parts if other is group]
        return self.find_part(group, max(indexes, default=-1) + 1)


class ResponseEventReader:
    """Reads the events of one response. Implements `event_stream.StreamReader`.

    new_id: as in `ItemSequencer`.
    """

    def __init__(self, new_id: Callable[[], str] | None = None) -> None:
        self.has_started = self.is_done = False
        self.warnings = RequestWarnings()
        self._usage = Usage()
        self._sequencer = ItemSequencer(0, new_id)
        self._items: list[_OpenItem] = []
        # The hash of each event's data, by the event's number.
        self._hashes: dict[int, int] = {}

    def read(self, data: bytes, name: str = "") -> list[Event]:
        if data.strip() == b"[DONE]":
            # Gateways in front of Responses add the end of Chat Completions.
            return []
        if name == "error":
            error = read_error_event(data)
            raise build_event_error(error, has_started=self.has_started)
        event = decode_data(_decoder, data, "event")
        if self._is_repeated(event.sequence_number, data):
            return []
        type = event.type or name
        if not type and event.object_type == "response":
            return self.read_whole(data)
        if type == "error" or (event.error and event.response is None):
            fields = {"message": event.message, "code": event.code, "param": event.param}
            error = read_error(event.error or fields)
            raise build_event_error(error, has_started=self.has_started)
        match type:
            case "response.created" | "response.in_progress" | "response.queued":
                return self._start()
            case (
                "response.completed"
                | "response.incomplete"
                | "response.failed"
                | "response.cancelled"
            ):
                return self._finish(type, event.response or _Response())
            case _:
                pass
        events = self._start() if type.startswith("response.") else []
        self._read_item_event(type, event)
        return [*events, *self._sequencer.take()]

    def read_whole(self, body: bytes) -> list[Event]:
        response = decode_data(_response_decoder, body, "response")
        if response.type == "error" or (response.status is None and response.error):
            error = read_error(response.error or response.message)
            raise build_event_error(error, has_started=False)
        if response.status not in ("completed", "incomplete", "failed", "cancelled"):
            raise EngineError(f"The upstream sent a response of status {response.status!r:.80}.")
        return self._finish("response.completed", response)

    def close(self) -> list[Event]:
        if not self.is_done:
            raise EngineError("The upstream's answer was cut off.")
        return [Finished(self._usage)]

    def _start(self) -> list[Event]:
        """Return `Started` once. An upstream that rejects the request sends an error
        before any other event.
        """
        if self.has_started:
            return []
        self.has_started = True
        return [Started(None, warnings=self.warnings.all)]

    def _is_repeated(self, number: int | None, data: bytes) -> bool:
        """Whether an event has been read before, by its number. Some servers give all
        events the same.
        """
        if number is None:
            return False
        is_counting = len(self._hashes) > 1
        is_repeated = is_counting and self._hashes.get(number) == hash(data)
        self._hashes[number] = hash(data)
        return is_repeated

    def _read_item_event(self, type: str, event: _WireEvent) -> None:
        name, _, step = type.rpartition(".")
        is_delta = step == "delta"
        if type == "response.output_item.added":
            self._start_item(event)
        elif type == "response.output_item.done":
            self._complete_item(self._find_item(event, event.item), event.item or _Item())
        elif name in _TEXT_EVENTS and (is_delta or step == "done"):
            self._read_text(_TEXT_EVENTS[name], event, is_delta=is_delta)
        elif name in _CALL_EVENTS and (is_delta or step == "done"):
            self._read_arguments(name, event, is_delta=is_delta)
        elif name in _PART_EVENTS:
            self._read_part(event, starts=step == "added", is_summary="summary" in name)
        elif is_delta and event.delta and "_call" not in name and ".audio" not in name:
            # Only the vendor's own tools, which no request asks for, may be left out.
            raise EngineError(f"The upstream sent an event of the unknown type {type!r:.80}.")

    def _find_item(self, event: _WireEvent, item: _Item | None = None) -> _OpenItem:
        """Find the item of an event by its index or id, or else the last one; begin it
        if its start has not come.
        """
        index = event.output_index
        id = event.item_id if item is None else item.id
        found = (
            [known for known in self._items if index is not None and known.index == index]
            or [known for known in self._items if id is not None and known.id == id]
            or [
                known for known in self._items if index is None and (id is None or known.id is None)
            ]
        )
        return found[-1] if found else self._begin_item(item or _Item(id=id), index)

    def _start_item(self, event: _WireEvent) -> None:
        item = event.item
        if item is None:
            raise EngineError("The upstream sent an event out of order.")
        known = [
            known
            for known in self._items
            if event.output_index is not None
            and known.index == event.output_index
            and (known.id, known.type) == (item.id, item.type)
        ]
        if not known:
            opened = self._begin_item(item, event.output_index, has_start=True)
            self._complete_texts(opened, item)
            if opened.call is not None:
                arguments = render_arguments(_get_arguments(item))
                self._sequencer.add_arguments(opened.call, arguments)

    def _begin_item(
        self, item: _Item, index: int | None = None, *, has_start: bool = False
    ) -> _OpenItem:
        opened = _OpenItem(item, index, has_start=has_start)
        self._items.append(opened)
        if item.type in _CALLS:
            self._begin_call(opened, item.type == "custom_tool_call", item)
        elif item.type not in ("message", "reasoning", None):
            # Items of the vendor's server-side tools, which this server never requests.
            log.warning("an upstream's item of type %.40r was left out", item.type)
        return opened

    def _begin_call(self, opened: _OpenItem, custom: bool, item: _Item) -> CallItem:
        id = item.call_id or item.id
        call = self._sequencer.start_call(str(id) if id else None, item.name or "", custom=custom)
        opened.call = call
        return call

    def _read_text(self, group: _Group, event: _WireEvent, *, is_delta: bool) -> None:
        item = self._find_item(event)
        index = event.summary_index if group is _Group.SUMMARY else event.content_index
        part = item.find_part(group, index)
        if is_delta:
            delta = event.delta
            text = delta if isinstance(delta, str) else join_content(delta, part.kind)
            self._sequencer.add(part, text)
        else:
            whole = event.refusal if group is _Group.REFUSAL else event.text
            self._sequencer.complete(part, join_content(whole, part.kind))

    def _read_part(self, event: _WireEvent, *, starts: bool, is_summary: bool) -> None:
        """Read a part that starts or ends, whole or with its first text."""
        item = self._find_item(event)
        index = event.summary_index if is_summary else event.content_index
        for group, text in _read_parts(item.type, event.part, is_summary=is_summary):
            is_new = starts and index is None
            part = item.begin_part(group) if is_new else item.find_part(group, index)
            self._sequencer.complete(part, text)

    def _read_arguments(self, name: str, event: _WireEvent, *, is_delta: bool) -> None:
        item = self._find_item(event)
        custom = name == "response.custom_tool_call_input"
        call = item.call or self._begin_call(item, custom, _Item(id=item.id))
        if is_delta:
            self._sequencer.add_arguments(call, render_arguments(event.delta))
            return
        self._sequencer.complete_name(call, event.name or "")
        self._sequencer.complete_call(call, event.input if custom else event.arguments)

    def _complete_item(self, known: _OpenItem, item: _Item) -> None:
        """Compare a whole item with what was received of it, and add the rest."""
        type = item.type or known.type or _guess_type(item)
        if known.type not in (None, type):
            raise EngineError(f"The upstream sent item {known.type!r:.80} as {type!r:.80}.")
        known.type = type
        self._complete_texts(known, item)
        if type in _CALLS:
            call = known.call or self._begin_call(known, type == "custom_tool_call", item)
            if item.call_id and not call.has_begun:
                call.id = str(item.call_id)
            self._sequencer.complete_item(call, item.name or "", _get_arguments(item))
        if type == "reasoning" and item.encrypted_content and not known.is_sealed:
            known.is_sealed = True
            seal = SealKind.OPENAI + clean_text(item.encrypted_content)
            self._sequencer.add(known.find_part(_Group.SUMMARY, None), "", seal=seal)
        known.is_done = True

    def _complete_texts(self, known: _OpenItem, item: _Item) -> None:
        """Compare the texts of a whole item, or of one that starts with text."""
        if known.type not in ("message", "reasoning"):
            return
        wholes: dict[_Group, list[str]] = {}
        for content, is_summary in ((item.content, False), (item.summary, True)):
            parts = cast("list[object]", content if isinstance(content, list) else [content])
            for part in parts:
                for group, text in _read_parts(known.type, part, is_summary=is_summary):
                    wholes.setdefault(group, []).append(text)
        for group, texts in wholes.items():
            parts = known.list_parts(group)
            whole = clean_text("".join(texts))
            if self._sequencer.join_texts(parts) == whole:
                continue
            if _KINDS[group] is not ReasoningDelta:
                part = parts[-1] if parts else known.begin_part(group)
                self._sequencer.add(part, self._sequencer.find_rest(parts, whole))
                continue
            for i, text in enumerate(texts):
                part = parts[i] if i < len(parts) else known.begin_part(group)
                self._sequencer.complete(part, text)

    def _finish(self, type: str, response: _Response) -> list[Event]:
        """Read the final response: its status, and what it has beyond the events."""
        status = response.status or ""
        details = response.incomplete_details
        detail = None if details is None else details.reason
        if type == "response.failed" or status == "failed" or response.error:
            raise build_event_error(read_error(response.error), has_started=self.has_started)
        if "cancelled" in (status, type.removeprefix("response.")):
            raise EngineError("The upstream cancelled its answer.")
        reason = FinishReason.STOP
        if type == "response.incomplete" or status == "incomplete" or detail is not None:
            incomplete_reason = _INCOMPLETE_REASONS.get(detail or "")
            if incomplete_reason is None:
                raise EngineError(f"The upstream ended its answer with {detail!r:.80}.")
            reason = incomplete_reason
        started = self._start()
        self._complete_output(response)
        # Only an answer that was cut off may end within an item.
        is_cut_off = any(item.has_start and not item.is_done for item in self._items)
        if reason is FinishReason.STOP and is_cut_off:
            raise EngineError("The upstream's answer was cut off within an item.")
        self._sequencer.close(is_cut_off=reason is not FinishReason.STOP)
        usage = response.usage or _Usage()
        input_details = usage.input_tokens_details or _InputDetails()
        output = usage.output_tokens_details or _OutputDetails()
        self._usage = Usage(
            usage.input_tokens or None,
            usage.output_tokens,
            input_details.cached_tokens,
            output.reasoning_tokens,
            input_details.cache_write_tokens,
        )
        self.is_done = True
        return [*started, *self._sequencer.take(), ChoiceFinished(0, reason)]

    def _complete_output(self, response: _Response) -> None:
        """Compare the items of the final response with those of the events. An empty
        list says nothing: some servers never fill it.
        """
        output = [item for item in response.output or () if item is not None]
        unmatched = list(self._items)
        for index, untyped in enumerate(output):
            item = msgspec.structs.replace(untyped, type=untyped.type or _guess_type(untyped))
            known = _match(item, index, unmatched)
            if known is None:
                known = self._begin_item(item)
            else:
                unmatched.remove(known)
            self._complete_item(known, item)
        if response.output_text and not output and not self._sequencer.has_texts:
            item = _Item("message", content=response.output_text)
            self._complete_item(self._begin_item(item), item)


def _match(item: _Item, index: int, known: list[_OpenItem]) -> _OpenItem | None:
    """Find the item of the events that a final item repeats: by its id, else by its
    place and type, as some servers create new ids for each event.
    """
    candidates = [other for other in known if other.type in (item.type, None)]
    matching = (
        [other for other in candidates if item.call_id and other.call_id == item.call_id]
        or [other for other in candidates if item.id and other.id == item.id]
        or [other for other in candidates if other.index == index]
        or [other for other in candidates if not item.call_id or not other.call_id]
    )
    return matching[0] if matching else None


def _read_parts(
    type: str | None, part: object, *, is_summary: bool
) -> Iterator[tuple[_Group, str]]:
    """Read a part of an item of this type."""
    if is_summary:
        yield _Group.SUMMARY, join_content(part, ReasoningDelta)
    elif type == "reasoning":
        yield _Group.CONTENT, join_content(part, ReasoningDelta)
    else:
        for kind, text in read_content(part):
            yield next(group for group, other in _KINDS.items() if other is kind), text


def _guess_type(item: _Item) -> str | None:
    """Guess the type of an item without one."""
    if item.name or item.call_id:
        return "function_call"
    if item.summary is not None or item.encrypted_content is not None:
        return "reasoning"
    return None if item.content is None else "message"


def _get_arguments(item: _Item) -> object:
    return item.input if item.type == "custom_tool_call" else item.arguments
