"""Reads the events of an upstream's Responses response. Pure."""

from __future__ import annotations

import logging

import msgspec
from msgspec import Struct

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
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ...core.message import (
    SealKind,
)
from .errors import build_event_error, decode_data
from .wire import WireError

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


class _Response(Struct, frozen=True):
    error: WireError | None = None
    incomplete_details: _Reason | None = None
    usage: _Usage | None = None


class _Part(Struct, frozen=True):
    text: str | None = None
    refusal: str | None = None


class _Item(Struct, frozen=True):
    type: str
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    encrypted_content: str | None = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None


class _WireEvent(Struct, frozen=True):
    """Any event; `type` selects the fields that apply. The fields of an error are
    either here or in `error`.
    """

    type: str
    output_index: int | None = None
    summary_index: int | None = None
    item: _Item | None = None
    delta: str | None = None
    response: _Response | None = None
    error: WireError | str | None = None
    message: str | None = None
    code: str | int | None = None
    param: str | None = None


_decode = msgspec.json.Decoder(_WireEvent).decode


_DELTAS = {
    "response.output_text.delta": TextDelta,
    "response.refusal.delta": RefusalDelta,
    "response.reasoning.delta": ReasoningDelta,
    "response.reasoning_text.delta": ReasoningDelta,
    "response.reasoning_summary_text.delta": ReasoningDelta,
    "response.function_call_arguments.delta": ToolCallDelta,
    "response.custom_tool_call_input.delta": ToolCallDelta,
}


class ResponseEventReader:
    """Reads the events of one response. Implements `engine.StreamReader`."""

    def __init__(self) -> None:
        self.has_started = self.is_done = False
        self.warnings: tuple[str, ...] = ()
        self._usage = Usage()
        self._open: _Item | None = None
        self._open_index: int | None = None
        self._has_deltas = False

    def read(self, data: bytes) -> list[Event]:  # noqa: PLR0911 - a table
        event = decode_data(_decode, data, "event")
        if (build := _DELTAS.get(event.type)) is not None:
            if self._open is None or event.output_index != self._open_index:
                raise EngineError("The upstream sent an event out of order.")
            self._has_deltas = self._has_deltas or bool(event.delta)
            return [build(0, event.delta)] if event.delta else []
        match event.type:
            case "error":
                error = event.error or WireError(event.message, None, event.param, event.code)
                raise build_event_error(error, has_started=self.has_started)
            case "response.created" | "response.in_progress" | "response.queued" if (
                not self.has_started
            ):
                # An upstream that rejects the request sends an error instead of this
                # event.
                self.has_started = True
                return [Started(None, warnings=self.warnings)]
            case "response.output_item.added":
                return self._start_item(event)
            case "response.reasoning_summary_part.added" if (
                event.summary_index and self._has_deltas
            ):
                # The parts of a summary are paragraphs, and no event contains the break
                # between them.
                return [ReasoningDelta(0, "\n\n")]
            case "response.output_item.done":
                return self._finish_item(event)
            case "response.completed" | "response.incomplete" | "response.failed":
                return self._finish(event.type, event.response or _Response())
            case _:
                return []

    def read_whole(self, body: bytes) -> list[Event]:
        del body
        raise EngineError("The upstream answered without a stream.")

    def close(self) -> list[Event]:
        if not self.is_done:
            raise EngineError("The upstream's answer was cut off.")
        return [Finished(self._usage)]

    def _start_item(self, event: _WireEvent) -> list[Event]:
        item = event.item
        if item is None or self._open is not None or not self.has_started:
            raise EngineError("The upstream sent an event out of order.")
        self._open = item
        self._open_index = event.output_index
        self._has_deltas = False
        if item.type not in _CALLS:
            if item.type not in ("message", "reasoning"):
                # Items of the vendor's server-side tools, which this server never
                # requests.
                log.warning("an upstream's item of type %.40r was left out", item.type)
            return []
        if not item.call_id or not item.name:
            raise EngineError("The upstream started a tool call without a name or an id.")
        return [ToolCallStart(0, item.call_id, item.name, (), item.type == "custom_tool_call")]

    def _finish_item(self, event: _WireEvent) -> list[Event]:
        """Finish the open item. If the upstream sent no deltas, the content is taken
        from the item itself.
        """
        item = event.item
        if self._open is None or item is None or event.output_index != self._open_index:
            raise EngineError("The upstream sent an event out of order.")
        self._open = None
        events: list[Event] = []
        if not self._has_deltas:
            arguments = item.arguments or item.input
            if item.type in _CALLS and arguments:
                events.append(ToolCallDelta(0, arguments))
            elif item.type == "message":
                parts = item.content or []
                events += [TextDelta(0, part.text) for part in parts if part.text]
                events += [RefusalDelta(0, part.refusal) for part in parts if part.refusal]
            elif item.type == "reasoning":
                texts = [part.text for part in item.content or item.summary or () if part.text]
                events += [ReasoningDelta(0, "\n\n".join(texts))] if texts else []
        if item.type == "reasoning" and item.encrypted_content:
            events.append(ReasoningDelta(0, "", seal=SealKind.OPENAI + item.encrypted_content))
        return events

    def _finish(self, type: str, response: _Response) -> list[Event]:
        if type == "response.failed":
            raise build_event_error(response.error or WireError(), has_started=self.has_started)
        reason = FinishReason.STOP
        if type == "response.incomplete":
            detail = (
                None if response.incomplete_details is None else response.incomplete_details.reason
            )
            incomplete_reason = _INCOMPLETE_REASONS.get(detail or "")
            if incomplete_reason is None:
                raise EngineError(f"The upstream ended its answer with {detail!r:.80}.")
            reason = incomplete_reason
        # Only an answer that was cut off may end within an item.
        if not self.has_started or (self._open is not None and reason is FinishReason.STOP):
            raise EngineError("The upstream sent an event out of order.")
        usage = response.usage or _Usage()
        details = usage.input_tokens_details or _InputDetails()
        output = usage.output_tokens_details or _OutputDetails()
        self._usage = Usage(
            usage.input_tokens or None,
            usage.output_tokens,
            details.cached_tokens,
            output.reasoning_tokens,
            details.cache_write_tokens,
        )
        self.is_done = True
        return [ChoiceFinished(0, reason)]
