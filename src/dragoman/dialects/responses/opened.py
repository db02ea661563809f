"""One output item that is being written: how it opens, grows and closes, and what it is when it is whole.

Each kind knows its own events. An event is given as its name and its fields after `sequence_number`, the number is
the writer's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...core.events import Token
from ...core.message import Reasoning, Refusal, Text, ToolCall
from ...core.reply import Part
from ..content_tokens import ContentTokens
from ..text import quoted
from . import pieces
from .normal import PREFIXES
from .tools import Name
from .view import ResponsesView

Said = tuple[bytes, bytes]
"""The name of an event without `response.`, and its fields."""

QUEUED, BEGUN, WHOLE, CUT = b"queued", b"in_progress", b"completed", b"incomplete"


class Opened(Protocol):
    def begin(self) -> list[Said]: ...

    def add(self, text: str, tokens: Sequence[Token]) -> Said | None:
        """The delta, unless there is nothing to tell yet."""
        ...

    def end(self) -> list[Said]: ...

    def item(self, status: bytes) -> bytes:
        """The item with all that was added."""
        ...


class _Item:
    def __init__(self, kind: str, index: int, tail: str) -> None:
        self.index = index
        self.id = quoted(f"{PREFIXES[kind]}_{tail}_{index}")
        self.place = b'"item_id":%s,"output_index":%d' % (self.id, index)
        self.texts: list[str] = []

    def text(self) -> str:
        return "".join(self.texts)


class OpenMessage(_Item):
    """Text. Tokens that released none wait for the next delta, or for the end of the item.

    delta: what stands before a delta's text.
    """

    def __init__(self, index: int, tail: str, view: ResponsesView) -> None:
        super().__init__("message", index, tail)
        self._top = view.logprobs
        self._tokens: list[Token] = []
        self._held: list[Token] = []
        self._content = ContentTokens()
        self.part = self.place + b',"content_index":0'
        self.delta = self.part + b',"delta":'

    def begin(self) -> list[Said]:
        return [(b"content_part.added", b'%s,"part":%s' % (self.part, pieces.text_part("", b"[]")))]

    def add(self, text: str, tokens: Sequence[Token]) -> Said | None:
        if self._top is not None:
            self._score(self._content.feed(text, tokens))
        self.texts.append(text)
        return self._delta(text) if text else None

    def _delta(self, text: str) -> Said:
        held, self._held = self._held, []
        scores = pieces.logprobs(held, self._top)
        return b"output_text.delta", b'%s%s,"logprobs":%s' % (self.delta, quoted(text), scores)

    def _score(self, tokens: Sequence[Token]) -> None:
        self._tokens.extend(tokens)
        self._held.extend(tokens)

    def end(self) -> list[Said]:
        self._score(self._content.close())
        rest = [self._delta("")] if self._held else []
        text, scores = self.text(), pieces.logprobs(self._tokens, self._top)
        done = b'%s,"text":%s,"logprobs":%s' % (self.part, quoted(text), scores)
        part = b'%s,"part":%s' % (self.part, pieces.text_part(text, scores))
        return [*rest, (b"output_text.done", done), (b"content_part.done", part)]

    def item(self, status: bytes) -> bytes:
        self._score(self._content.close() if status != BEGUN else [])
        told = pieces.text_part(self.text(), pieces.logprobs(self._tokens, self._top))
        return pieces.message(self.id, status, b"" if status == BEGUN else told)


class OpenRefusal(_Item):
    def __init__(self, index: int, tail: str) -> None:
        super().__init__("message", index, tail)
        self.part = self.place + b',"content_index":0'
        self.delta = self.part + b',"delta":'

    def begin(self) -> list[Said]:
        return [(b"content_part.added", b'%s,"part":%s' % (self.part, pieces.refusal_part("")))]

    def add(self, text: str, tokens: Sequence[Token]) -> Said | None:
        del tokens
        self.texts.append(text)
        return (b"refusal.delta", self.delta + quoted(text)) if text else None

    def end(self) -> list[Said]:
        part = b'%s,"part":%s' % (self.part, pieces.refusal_part(self.text()))
        return [(b"refusal.done", b'%s,"refusal":%s' % (self.part, quoted(self.text()))), (b"content_part.done", part)]

    def item(self, status: bytes) -> bytes:
        return pieces.message(self.id, status, b"" if status == BEGUN else pieces.refusal_part(self.text()))


class OpenReasoning(_Item):
    """As a summary or as it is: the two have events of their own."""

    def __init__(self, index: int, tail: str, view: ResponsesView) -> None:
        super().__init__("reasoning", index, tail)
        self._summary, self._seal = view.summary, view.seal
        self._kind = b"reasoning_summary_text" if view.summary else b"reasoning_text"
        self._frame = b"reasoning_summary_part" if view.summary else b"content_part"
        self.part = self.place + (b',"summary_index":0' if view.summary else b',"content_index":0')
        self.delta = self.part + b',"delta":'

    def _part(self, text: str) -> bytes:
        return pieces.summary_part(text) if self._summary else pieces.reasoning_part(text)

    def begin(self) -> list[Said]:
        return [(self._frame + b".added", b'%s,"part":%s' % (self.part, self._part("")))]

    def add(self, text: str, tokens: Sequence[Token]) -> Said | None:
        del tokens
        self.texts.append(text)
        return (self._kind + b".delta", self.delta + quoted(text)) if text else None

    def end(self) -> list[Said]:
        text = self.text()
        return [
            (self._kind + b".done", b'%s,"text":%s' % (self.part, quoted(text))),
            (self._frame + b".done", b'%s,"part":%s' % (self.part, self._part(text))),
        ]

    def item(self, status: bytes) -> bytes:
        if status == BEGUN:
            return pieces.reasoning(self.id, status, b"", b"")
        text, told = self.text(), self._part(self.text())
        sealed = b"" if self._seal is None else quoted(self._seal(text))
        summary, content = (told, b"") if self._summary else (b"", told)
        return pieces.reasoning(self.id, status, summary, content, sealed)


class OpenCall(_Item):
    def __init__(self, index: int, tail: str, call_id: str, name: Name, custom: bool) -> None:
        super().__init__("custom_tool_call" if custom else "function_call", index, tail)
        self._call_id, self._name, self._custom = call_id, name, custom
        self._kind = b"custom_tool_call_input" if custom else b"function_call_arguments"
        self.delta = self.place + b',"delta":'

    def begin(self) -> list[Said]:
        return []

    def add(self, text: str, tokens: Sequence[Token]) -> Said | None:
        del tokens
        self.texts.append(text)
        return (self._kind + b".delta", self.delta + quoted(text)) if text else None

    def end(self) -> list[Said]:
        told = quoted(self.text())
        if self._custom:
            return [(self._kind + b".done", b'%s,"input":%s' % (self.place, told))]
        name = quoted(self._name.name)
        return [(self._kind + b".done", b'%s,"name":%s,"arguments":%s' % (self.place, name, told))]

    def item(self, status: bytes) -> bytes:
        return pieces.call(self.id, status, self._call_id, self._name, self.text(), self._custom)


class Opener:
    """Opens the items of one answer. Their ids derive from the answer's and never change."""

    def __init__(self, response_id: str, view: ResponsesView) -> None:
        self._tail, self._view = response_id.removeprefix("resp_"), view
        self._names = {name.joined: name for name in view.names}

    def open(self, index: int, kind: type[Part]) -> OpenMessage | OpenRefusal | OpenReasoning:
        """Anything but a call."""
        if kind is Reasoning:
            return OpenReasoning(index, self._tail, self._view)
        return OpenRefusal(index, self._tail) if kind is Refusal else OpenMessage(index, self._tail, self._view)

    def call(self, index: int, call_id: str, name: str, custom: bool) -> OpenCall:
        return OpenCall(index, self._tail, call_id, self._names.get(name) or Name(name, name, ""), custom)

    def whole(self, index: int, part: Part) -> Opened:
        """A finished part."""
        if isinstance(part, ToolCall):
            opened: Opened = self.call(index, part.id, part.name, part.custom)
            opened.add(part.arguments, ())
            return opened
        opened = self.open(index, type(part))
        opened.add(part.text, part.tokens if isinstance(part, Text) else ())
        return opened
