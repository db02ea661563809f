"""The items of one choice of an upstream's answer: puts their pieces in sequence, and
compares whole items with their pieces. The readers of all upstream APIs share it.

In the event stream a tool call ends before the next item begins. What follows an open
call is buffered until that call is complete: when its arguments are a whole JSON
object, which causes no delay for sequential calls, or when the upstream ends it.

Upstreams also send whole items, after the pieces or in their place. What a whole item
has beyond its pieces is added; if it contradicts them, the answer is an error.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence

from ...core.errors import EngineError
from ...core.events import (
    Event,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from .chunk_tokens import Tokens
from .event_decoding import clean_text, has_surrogates

TextKind = type[TextDelta] | type[ReasoningDelta] | type[RefusalDelta]
"""The kind of a text: the event that carries it."""

PARAGRAPH_BREAK = "\n\n"
"""Separates two pieces of reasoning: no event of an upstream contains the break."""
MAX_PENDING_CHARACTERS = 8 * 1024 * 1024
"""Limit of the text that is buffered behind an open tool call, in characters."""


class _Item:
    """What has been received of an item.

    half: the first half of a surrogate pair that is split between two pieces.
    """

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.half = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def join_halves(self, piece: str) -> str:
        """Join a surrogate pair that is split between two pieces of JSON text, and
        replace lone surrogates, which UTF-8 cannot represent.
        """
        if not self.half and not has_surrogates(piece):
            return piece
        joined = self.half + piece
        is_split = "\ud800" <= joined[-1:] <= "\udbff"
        self.half = joined[-1] if is_split else ""
        return clean_text(joined[:-1] if is_split else joined)


class TextItem(_Item):
    """Text, reasoning or a refusal."""

    def __init__(self, kind: TextKind) -> None:
        super().__init__()
        self.kind: TextKind = kind


class CallItem(_Item):
    """A tool call.

    id: None if the upstream sends none.
    pending: received pieces of the arguments that no event has carried yet.
    has_begun: whether its start has been emitted.
    is_ended: whether all of it has been emitted.
    """

    def __init__(self, id: str | None, name: str, custom: bool) -> None:
        super().__init__()
        self.id = id
        self.name = name
        self.custom = custom
        self.pending: list[tuple[str, Tokens]] = []
        self.has_begun = False
        self.is_ended = False
        self._scanner = JsonObjectScanner()

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are complete. Custom tool input has no detectable end."""
        return self._scanner.is_complete and not self.custom

    def append(self, text: str, tokens: Tokens) -> None:
        self.pieces.append(text)
        self.pending.append((text, tokens))
        self._scanner.feed(text)


class ItemSequencer:
    """Puts the items of one choice in sequence. `take` returns the events that are
    ready.

    new_id: creates ids for calls without one; None if these are errors.
    """

    def __init__(self, choice: int, new_id: Callable[[], str] | None) -> None:
        self._choice = choice
        self._new_id = new_id
        self._events: list[Event] = []
        self._queue: deque[CallItem | Event] = deque()
        self._pending_characters = 0
        # The text that ends with the first half of a surrogate pair.
        self._split: TextItem | None = None
        self._last_by_kind: dict[TextKind, TextItem] = {}
        self._has_calls = False
        self._is_in_reasoning = False

    @property
    def is_in_reasoning(self) -> bool:
        """Whether the last event is reasoning that a seal has not ended."""
        return self._is_in_reasoning

    @property
    def has_any(self) -> bool:
        """Whether there has been a text or a call."""
        return self._has_calls or self.has_texts

    @property
    def has_texts(self) -> bool:
        return bool(self._last_by_kind)

    def take(self) -> list[Event]:
        """Take the events that are ready."""
        events = self._events
        self._events = []
        return events

    def add(self, item: TextItem, text: str, tokens: Tokens = (), seal: str = "") -> None:
        """Add a piece of text. seal: see `ReasoningDelta`.

        Raises EngineError if another item of the same kind has begun since: the text
        would end up behind that item's.
        """
        if not (text or tokens or seal):
            return
        if seal or self._split is not item:
            self._end_halves()
        text = item.join_halves(text)
        self._split = item if item.half else None
        if text:
            is_paragraph = item.kind is ReasoningDelta and not item.pieces
            self.record(item, text)
            if is_paragraph and self._is_in_reasoning:
                self._put(ReasoningDelta(self._choice, PARAGRAPH_BREAK))
        elif not tokens and not seal:
            return
        self._is_in_reasoning = item.kind is ReasoningDelta and not seal
        self._put(
            ReasoningDelta(self._choice, text, tokens, seal)
            if seal
            else item.kind(self._choice, text, tokens)
        )

    def complete(self, item: TextItem, whole: str) -> None:
        """Compare a whole text with its pieces, and add the rest. An empty text says
        nothing: many servers leave the fields of whole items empty.

        Raises EngineError if they contradict each other.
        """
        self.add(item, self.find_rest([item], whole))

    def find_rest(self, items: Sequence[TextItem], whole: str) -> str:
        """Return what a whole text has beyond the pieces of its items. Raises as
        `complete`.
        """
        return find_rest(self.join_texts(items), clean_text(whole))

    def join_texts(self, items: Sequence[TextItem]) -> str:
        """Return the text received of these items, which no piece continues."""
        self._end_halves()
        return "".join(item.text for item in items)

    def start_call(self, id: str | None, name: str = "", *, custom: bool = False) -> CallItem:
        """Start a call. It begins with its first arguments or its end: until then,
        `name_call` may add to its name.
        """
        self._end_halves()
        self._has_calls = True
        self._is_in_reasoning = False
        call = CallItem(None if id is None else clean_text(id), clean_text(name), custom)
        self._queue.append(call)
        return call

    def name_call(self, call: CallItem, name: str) -> None:
        """Read a piece of a name, or the whole name once more."""
        name = clean_text(name)
        if not name or name == call.name:
            return
        if call.has_begun or any(call.pieces):
            if call.name:
                raise EngineError("The upstream changed the name of a tool call.")
            call.name = name
        else:
            call.name = name if name.startswith(call.name) else call.name + name
        self._release()

    def complete_name(self, call: CallItem, name: str) -> None:
        """Compare a whole name with its pieces. Raises EngineError if they contradict
        each other.
        """
        name = clean_text(name)
        if call.name and name and name != call.name:
            is_longer = name.startswith(call.name) and not call.has_begun
            if not is_longer:
                raise EngineError("The upstream changed the name of a tool call.")
            call.name = name
        self.name_call(call, name)

    def add_arguments(self, call: CallItem, text: str, tokens: Tokens = ()) -> None:
        """Add a piece of the arguments, or of a custom tool's input. A repeated whole
        call adds nothing.
        """
        text = call.join_halves(text)
        if call.is_ended:
            # White space after the object is not part of the arguments.
            if text.strip() and text != call.text:
                raise EngineError("The upstream continued a tool call that was already complete.")
            return
        if call.is_complete and text == call.text:
            return
        call.append(text, tokens)
        self._pending_characters += len(text)
        self._release()

    def complete_call(self, call: CallItem, arguments: object) -> None:
        """Compare a call's whole arguments, text or an object, with their pieces, and
        add the rest. Raises EngineError if they contradict each other.
        """
        rest = find_missing_arguments(call.text, arguments, is_json=not call.custom)
        if rest:
            self.add_arguments(call, rest)

    def complete_item(self, call: CallItem, name: str, arguments: object) -> None:
        """Compare a whole call with its pieces, add the rest, and end it. Without
        arguments `close` ends it, which knows whether a limit has cut them off. Raises
        EngineError if they contradict each other.
        """
        self.complete_name(call, name)
        self.complete_call(call, arguments)
        if call.text.strip():
            self.end_call(call)

    def end_call(self, call: CallItem, *, is_cut_off: bool = False) -> None:
        """End a call: there will be no more arguments. Without any, they are `{}`.

        is_cut_off: whether a limit may have cut off the arguments.
        """
        if call.half:
            call.half = ""
            self.add_arguments(call, "\ufffd")
        if not (is_cut_off or call.custom or call.is_ended or call.text.strip()):
            self.add_arguments(call, "{}")
        if not call.is_ended:
            # What precedes it in the queue may have to wait; then `_release` ends it.
            call.is_ended = True
            self._release()

    def close(self, *, is_cut_off: bool = False) -> None:
        """End all calls, in the order in which they began.

        is_cut_off: whether a limit may have cut off the last item.
        """
        self._end_halves()
        entries = tuple(self._queue)
        for entry in entries:
            if isinstance(entry, CallItem):
                if not entry.name:
                    raise EngineError("The upstream started a tool call without a name.")
                self.end_call(entry, is_cut_off=is_cut_off and entry is entries[-1])

    def record_plain(self, item: TextItem, text: str) -> bool:
        """Record a piece of text, whose event the caller emits; return whether it is
        as plain as most texts are, and no call is open. If not, call `add`.
        """
        if self._queue or self._split is not None or (not text.isascii() and has_surrogates(text)):
            return False
        self._is_in_reasoning = item.kind is ReasoningDelta
        if self._last_by_kind.get(item.kind) is item:
            item.pieces.append(text)
        else:
            self.record(item, text)
        return True

    def record(self, item: TextItem, text: str) -> None:
        """Record a piece of text, whose event the caller emits. Raises as `add`."""
        if item.pieces and self._last_by_kind[item.kind] is not item:
            raise EngineError("The upstream interleaved the texts of several items.")
        self._last_by_kind[item.kind] = item
        item.pieces.append(text)

    def check_not_empty(self, word: str) -> None:
        """Raise EngineError if there has been neither text nor a call, although the
        upstream says that it ended for one.

        word: the upstream's reason.
        """
        if not self.has_any:
            raise EngineError(f"The upstream ended its response with {word!r}, but sent no call.")

    def _end_halves(self) -> None:
        """Replace the first half of a surrogate pair whose second half has not come."""
        item = self._split
        self._split = None
        if item is not None and item.half:
            item.half = ""
            self.record(item, "\ufffd")
            self._put(item.kind(self._choice, "\ufffd"))

    def _put(self, event: TextDelta | ReasoningDelta | RefusalDelta) -> None:
        if not self._queue:
            self._events.append(event)
            return
        self._queue.append(event)
        self._pending_characters += len(event.text)
        self._release()

    def _release(self) -> None:
        """Emit what is not behind an open call."""
        queue = self._queue
        while queue:
            head = queue[0]
            if isinstance(head, CallItem):
                self._drain(head)
                # Without a name, the call waits for one; `close` reports that there was
                # none.
                is_last = len(queue) == 1
                if not head.name or not (head.is_ended or (head.is_complete and not is_last)):
                    break
                head.is_ended = True
            else:
                self._events.append(head)
                self._pending_characters -= len(_read_text(head))
            queue.popleft()
        if self._pending_characters > MAX_PENDING_CHARACTERS:
            raise EngineError(
                "The upstream's tool calls are interleaved and too long to be put in sequence."
            )

    def _drain(self, call: CallItem) -> None:
        """Emit the pieces of a call that has a name."""
        if not call.name or not (call.is_ended or call.has_begun or any(call.pieces)):
            return
        pending = call.pending
        call.pending = []
        if not call.has_begun:
            call.has_begun = True
            # The first delta of a call has its name but no arguments, so its tokens
            # belong to the start.
            name_tokens: Tokens = ()
            while pending and not pending[0][0]:
                name_tokens += pending.pop(0)[1]
            id = call.id or (None if self._new_id is None else self._new_id())
            if id is None:
                raise EngineError("The upstream started a tool call without an id.")
            self._events.append(
                ToolCallStart(self._choice, id, call.name, name_tokens, call.custom)
            )
        for text, tokens in pending:
            self._pending_characters -= len(text)
            if text or tokens:
                self._events.append(ToolCallDelta(self._choice, text, tokens))


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


def find_rest(received: str, *wholes: str) -> str:
    """Return what a whole text has beyond the text received in pieces.

    wholes: the whole text, in every form that is right.

    Raises: EngineError if the pieces contradict it.
    """
    if not any(wholes):
        return ""
    for whole in wholes:
        if whole.startswith(received):
            return whole[len(received) :]
    # Some servers strip a whole text.
    if any(whole.strip() == received.strip() for whole in wholes):
        return ""
    raise EngineError("The upstream's whole answer contradicts the pieces that it sent before.")


def find_missing_arguments(received: str, whole: object, *, is_json: bool) -> str:
    """Return what a call's whole arguments have beyond the text received in pieces.
    Raises EngineError if the pieces contradict them.
    """
    text = clean_text(render_arguments(whole))
    if not received.strip():
        return text
    if not is_json or not text.strip():
        return find_rest(received, text)
    wholes = [text]
    try:
        value = json.loads(text)
        # Servers serialize the same object with and without white space.
        wholes += [json.dumps(value, ensure_ascii=False), json.dumps(value)]
        if json.loads(received) == value:
            return ""
    except (ValueError, RecursionError):
        pass
    return find_rest(received, *wholes)


def render_arguments(arguments: object) -> str:
    """Return arguments as JSON text: some servers send the object itself."""
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        return arguments
    if not isinstance(arguments, dict):
        raise EngineError("The upstream sent tool call arguments that are not an object.")
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _read_text(event: Event) -> str:
    match event:
        case TextDelta() | ReasoningDelta() | RefusalDelta():
            return event.text
        case _:
            return ""
