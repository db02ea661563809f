"""Puts interleaved deltas of tool calls in sequence: in the event stream a call ends
before the next begins.

A later call is buffered until the one before it is complete: when its arguments are a
whole JSON object, which causes no delay for sequential calls, or else at the end of all
calls.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import EngineError
from ...core.events import (
    Event,
    ToolCallDelta,
    ToolCallStart,
)
from .chunk_tokens import Tokens
from .wire import (
    CallDelta,
)

MAX_PENDING_CHARACTERS = 8 * 1024 * 1024
"""Limit of buffered tool calls, in characters."""


class ToolCallSequencer:
    """Puts the tool calls of one choice in sequence. new_id: creates ids for calls
    without one.
    """

    def __init__(self, choice: int, new_id: Callable[[], str]) -> None:
        self._choice = choice
        self._new_id = new_id
        self._by_index: dict[int, _Call] = {}
        self._queue: list[_Call] = []
        self._pending_characters = 0

    @property
    def is_open(self) -> bool:
        """Whether a call has not ended."""
        return bool(self._queue)

    def feed(self, delta: CallDelta, tokens: Tokens = ()) -> list[Event]:
        """Feed a delta, and return the events that are ready. tokens: those of the same
        chunk.
        """
        index = delta.index
        if index is None:
            # Some servers send each call whole, without an index.
            is_new = delta.id is not None or not self._by_index
            index = len(self._by_index) if is_new else max(self._by_index)
        call = self._by_index.get(index)
        name, text = _read_delta(delta)
        is_another = False
        if call is not None and call.is_complete:
            # Other servers use index 0 for all calls, some of them without ids.
            is_another = (
                delta.id != call.id if delta.id and call.id else bool(name and text.strip())
            )
        if call is None or is_another:
            call = _Call(delta.id or None, delta.custom is not None)
            self._by_index[index] = call
            self._queue.append(call)
        if name and not call.name:
            call.name = name
        if call.is_finished:
            # White space after the object is not part of the arguments.
            if text.strip():
                raise EngineError("The upstream continued a tool call that was already complete.")
            text = ""
        call.scanner.feed(text)
        if not call.is_finished:
            call.pending.append((text, tokens))
            self._pending_characters += len(text)
        events: list[Event] = []
        while self._queue:
            head = self._queue[0]
            self._pending_characters -= (
                sum(len(text) for text, _ in head.pending) if head.name else 0
            )
            events += head.drain(self._choice, self._new_id)
            # Without a name, the call waits for one; `close` reports that there was
            # none.
            if len(self._queue) == 1 or not head.name or not head.is_complete:
                break
            head.is_finished = True
            self._queue.pop(0)
        if self._pending_characters > MAX_PENDING_CHARACTERS:
            raise EngineError(
                "The upstream's tool calls are interleaved and too long to be put in sequence."
            )
        return events

    def close(self) -> list[Event]:
        """End the calls and flush all buffered ones, in the order in which they began."""
        events: list[Event] = []
        for call in self._queue:
            if not call.name:
                raise EngineError("The upstream started a tool call without a name.")
            events += call.drain(self._choice, self._new_id)
            call.is_finished = True
        self._queue.clear()
        self._pending_characters = 0
        return events


class JsonObjectScanner:
    """Detects the end of a JSON object in text that is fed in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self.is_complete = False

    def feed(self, text: str) -> None:
        for character in text:
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                if character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                self.is_complete |= self._depth == 0


class _Call:
    def __init__(self, id: str | None, custom: bool) -> None:
        self.id = id
        self.name = ""
        self.custom = custom
        self.has_begun = self.is_finished = False
        self.scanner = JsonObjectScanner()
        self.pending: list[tuple[str, Tokens]] = []

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are complete. Custom tool input has no detectable end."""
        return self.scanner.is_complete and not self.custom

    def drain(self, choice: int, new_id: Callable[[], str]) -> list[Event]:
        """Return the events that are ready."""
        if not self.name:
            return []
        pending = self.pending
        self.pending = []
        events: list[Event] = []
        if not self.has_begun:
            self.has_begun = True
            # The first delta of a call has its name but no arguments, so its tokens
            # belong to the start.
            name_tokens = pending.pop(0)[1] if pending and not pending[0][0] else ()
            events.append(
                ToolCallStart(choice, self.id or new_id(), self.name, name_tokens, self.custom)
            )
        events += [
            ToolCallDelta(choice, text, tokens) for text, tokens in pending if text or tokens
        ]
        return events


def _read_delta(delta: CallDelta) -> tuple[str, str]:
    """Read the tool's name and a fragment of its arguments."""
    if delta.custom is not None:
        return delta.custom.name or "", delta.custom.input or ""
    if delta.function is not None:
        return delta.function.name or "", delta.function.arguments or ""
    return "", ""
