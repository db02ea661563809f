"""The base class of parsers that emit call events."""

from __future__ import annotations

from ..core.events import Event, FinishReason, TextDelta, Token, ToolCallDelta, ToolCallStart
from ..core.syntax import ParseContext
from .call_reader import CallReader
from .json_call_reader import JsonCallReader
from .json_scanner import ReadStatus
from .text_buffer import MarkerTokens
from .text_parser import TextParser

_MAX_REPORTED_CHARS = 100


class CallParser(TextParser):
    """Base class of parsers that read calls. Text that turns out not to be a call is
    emitted as text.
    """

    def __init__(self, context: ParseContext, markers: MarkerTokens) -> None:
        super().__init__(markers)
        self._tools = {tool.name: tool for tool in context.tools}
        self._new_id = context.new_id
        # A placeholder without keys, which recognizes no call; every subclass builds
        # the reader before it reads.
        self._call: CallReader = JsonCallReader(self._tools, (), ())
        self._has_started = False

    def _read_call(self, text: str, pos: int, stop: int | None = None) -> tuple[int, ReadStatus]:
        """Continue reading the call, up to `stop`, and emit what is parsed. The buffer
        begins with the call.
        """
        call = self._call
        pos, status = call.read(text if stop is None else text[:stop], pos)
        n = self._count_consumed(text, pos)
        if call.has_begun:
            self._stream_arguments(call, n)
        # Models also write JSON that is not a call. Emitted as text, nothing is lost;
        # the client could not execute it as a call.
        elif call.is_undeclared or status is not ReadStatus.MORE:
            self._emit_buffered(TextDelta, n)
        if status is not ReadStatus.MORE:
            self._has_started = False
        return pos, status

    def _call_fast_path(self, event: TextDelta) -> Event | None:
        """Return the event for a delta that only continues a string in the arguments,
        or None for any other delta.

        It is called only while the buffer is empty.
        """
        if self._has_started and self._call.is_plain_continuation(event.text):
            return ToolCallDelta(event.choice, event.text, event.tokens)
        return None

    def _stream_arguments(self, call: CallReader, n: int) -> None:
        if self._has_started:
            self._drop(n)
        else:
            self._has_started = True
            self._emit_buffered(self._build_start, n)
        arguments = call.take_arguments()
        if arguments:
            self._events.append(
                ToolCallDelta(self._choice, arguments, self._take_pending_tokens(call=True))
            )

    def _record_skipped_text(self) -> None:
        """Record a warning about text of the last call that is no argument."""
        call = self._call
        if call.has_begun and call.skipped:
            self._warnings.append(
                f"tools: text between the arguments of a call of {call.name!r} is skipped: "
                f"{call.skipped[:_MAX_REPORTED_CHARS]!r}"
            )

    def _build_start(self, choice: int, text: str, tokens: tuple[Token, ...]) -> Event:  # noqa: ARG002
        # An id from the model is preserved: some templates repeat it in the next
        # prompt, which must match the sampled tokens.
        id = self._call.id or self._new_id()
        return ToolCallStart(choice, id, self._call.name, tokens, self._call.is_custom)

    def _end_call(self, reason: FinishReason | None) -> None:
        """Emit the incomplete call when the response ends inside it.

        reason: see `TextParser._finish`. A call that the model itself ended is closed;
            one that was cut off stays incomplete, so that a client cannot run it.
        """
        self._call.finish(is_truncated=reason not in (FinishReason.STOP, None))
        self._stream_arguments(self._call, len(self._buffer))
        self._has_started = False
