"""Tool calls of one choice, in sequence, out of deltas that may be interleaved. Pure.

Here a call ends where the next begins. So a later call waits until the one before it is complete: as soon as its
arguments are a whole JSON object, which is at once for those who send one call after the other, and else when the
calls are over.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import EngineError
from ...core.events import Event, Token, ToolCallDelta, ToolCallStart
from .wire import CallDelta

MAX_WAITING = 8 * 1024 * 1024
"""Characters of calls that wait for others."""

Tokens = tuple[Token, ...]


class JsonExtent:
    """Whether a text, fed in pieces, has come to the end of a JSON object."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self.complete = False

    def feed(self, text: str) -> None:
        for character in text:
            if self._in_string:
                self._string(character)
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                self.complete |= self._depth == 0

    def _string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False


class _Call:
    def __init__(self, id: str | None, custom: bool) -> None:
        self.id, self.name, self.custom = id, "", custom
        self.begun = self.over = False
        self.extent = JsonExtent()
        self.waiting: list[tuple[str, Tokens]] = []

    @property
    def complete(self) -> bool:
        """A free-form call's text has no end of its own."""
        return self.extent.complete and not self.custom

    def take(self, choice: int, new_id: Callable[[], str]) -> list[Event]:
        """What can be said of it now."""
        if not self.name:
            return []
        waiting, self.waiting = self.waiting, []
        events: list[Event] = []
        if not self.begun:
            self.begun = True
            named = waiting.pop(0)[1] if waiting and not waiting[0][0] else ()
            events.append(ToolCallStart(choice, self.id or new_id(), self.name, named, self.custom))
        events += [ToolCallDelta(choice, text, tokens) for text, tokens in waiting if text or tokens]
        return events


class CallSequence:
    """The calls of one choice. new_id: makes the id of a call to which the upstream gave none."""

    def __init__(self, choice: int, new_id: Callable[[], str]) -> None:
        self._choice, self._new_id = choice, new_id
        self._by_index: dict[int, _Call] = {}
        self._queue: list[_Call] = []
        self._waiting = 0

    def feed(self, delta: CallDelta, tokens: Tokens = ()) -> list[Event]:
        """tokens: those that came with this delta."""
        call = self._find(delta)
        name, text = _said(delta)
        if name and not call.name:
            call.name = name
        if call.over:
            if text.strip():
                raise EngineError("The upstream continued a tool call that was complete.")
            text = ""
        call.extent.feed(text)
        if not call.over:
            call.waiting.append((text, tokens))
            self._waiting += len(text)
        events = self._drain()
        if self._waiting > MAX_WAITING:
            raise EngineError("The upstream's tool calls are interleaved and too long to be put in sequence.")
        return events

    def close(self) -> list[Event]:
        """No more calls, at least for now: everything that has waited, in the order in which the calls began."""
        events: list[Event] = []
        for call in self._queue:
            if not call.name:
                raise EngineError("The upstream started a tool call without a name.")
            events += call.take(self._choice, self._new_id)
            call.over = True
        self._queue.clear()
        self._waiting = 0
        return events

    def _find(self, delta: CallDelta) -> _Call:
        index = delta.index
        if index is None:
            # Some send each call whole and do not number them.
            fresh = delta.id is not None or not self._by_index
            index = len(self._by_index) if fresh else max(self._by_index)
        known = self._by_index.get(index)
        # Others number all of them 0.
        another = known is not None and delta.id and known.id and delta.id != known.id and known.complete
        if known is None or another:
            known = _Call(delta.id or None, delta.custom is not None)
            self._by_index[index] = known
            self._queue.append(known)
        return known

    def _drain(self) -> list[Event]:
        events: list[Event] = []
        while self._queue:
            head = self._queue[0]
            self._waiting -= sum(len(text) for text, _ in head.waiting) if head.name else 0
            events += head.take(self._choice, self._new_id)
            if len(self._queue) == 1 or not head.complete:
                return events
            head.over = True
            self._queue.pop(0)
        return events


def _said(delta: CallDelta) -> tuple[str, str]:
    """The tool's name and a piece of what it is called with."""
    if delta.custom is not None:
        return delta.custom.name or "", delta.custom.input or ""
    if delta.function is not None:
        return delta.function.name or "", delta.function.arguments or ""
    return "", ""
