"""Tool calls as JSON between `<tool_call>` marks: NousResearch's Hermes, Qwen2.5, Qwen3 and many others.

<tool_call>
{"name": "f", "arguments": {"x": 1}}
</tool_call>
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from ..core.events import Event, FinishReason, TextDelta, ToolCallDelta
from ..core.message import CustomTool, Tool
from ..core.syntax import JsonValue, ParseContext, Parser, Piece, Verbatim
from .base import Found, Lead
from .calls import Call, CallParser
from .json_text import Seen
from .marks import Marks

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ONE_STRING = (
    '{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}'
)
"""The schema of a custom tool's arguments."""


class HermesFormat:
    """added: texts of the vocabulary's added tokens; `<tool_call>`, if among them, counts only as that one token."""

    def __init__(self, *, added: Collection[str] = ()) -> None:
        self._single = frozenset({OPEN} & set(added))
        self._opens = Marks([OPEN, "\n" + OPEN])
        self._closes = Marks([CLOSE, "\n" + CLOSE])

    @property
    def markers(self) -> tuple[str, ...]:
        return OPEN, CLOSE

    @property
    def openers(self) -> tuple[str, ...]:
        """The markers that begin a call and nothing else: without them there can be none."""
        return (OPEN,)

    @property
    def between(self) -> str:
        return "\n"

    def call(self, tool: Tool) -> tuple[Piece, ...]:
        name = msgspec.json.encode(tool.name).decode().replace("<", "\\u003c")
        schema = ONE_STRING if isinstance(tool, CustomTool) else tool.parameters
        return (
            Verbatim(f'{OPEN}\n{{"name": {name}, "arguments": '),
            JsonValue(schema),
            Verbatim("}\n" + CLOSE),
        )

    def parser(self, context: ParseContext) -> Parser:
        return HermesParser(context, self._opens, self._closes, self._single)


class HermesParser(CallParser):
    """Between calls (only white space so far), in text, in a call, behind its JSON.

    Until its name is known a call is held; from then on its arguments stream. What turns out not to be a call of a
    declared tool is text, exactly as it was written. A newline before a call, and white space between calls and
    behind the last one, is the template's and is dropped.
    """

    def __init__(self, context: ParseContext, opens: Marks, closes: Marks, single: Collection[str]) -> None:
        super().__init__(context, single)
        self._opens = opens
        self._closes = closes
        self._state: Callable[[HermesParser, str, int], int] = HermesParser._between
        self._lead = Lead(OPEN)
        self._search = 0
        self._called = False

    def _quick(self, event: TextDelta) -> Event | None:
        if self._state is HermesParser._in_text and not self._search and not self._opens.occurs(event.text):
            return event
        return self._quick_call(event) if self._state is HermesParser._in_call else None

    def _step(self, text: str, at: int) -> int:
        return self._state(self, text, at)

    def _between(self, text: str, at: int) -> int:
        at, found = self._lead.read(text, at)
        if found is Found.MORE:
            return at
        if found is Found.MARK and self._buffer.is_mark(OPEN, len(text) - at):
            return self._begin_call(at)
        self._to_text()
        _, self._search = self._opens.search(OPEN[: self._lead.matched], 0, 0)
        if at == len(text):
            self._release(TextDelta, len(self._buffer) - self._opens.held[self._search])
        return at

    def _in_text(self, text: str, at: int) -> int:
        end, self._search = self._opens.search(text, at, self._search)
        if end < 0:
            self._release(TextDelta, len(self._buffer) - self._opens.held[self._search])
            return len(text)
        if self._buffer.is_mark(OPEN, len(text) - end):
            self._release(TextDelta, self._read(text, end) - self._opens.ending[self._search])
            return self._begin_call(end)
        return end

    def _begin_call(self, at: int) -> int:
        self._call = Call(self._tools, ("name",), ("arguments", "parameters"))
        self._state = HermesParser._in_call
        return at

    def _to_text(self) -> None:
        self._state = HermesParser._in_text
        self._search = 0

    def _to_between(self) -> None:
        self._state = HermesParser._between
        self._lead = Lead(OPEN)
        self._called = True

    def _in_call(self, text: str, at: int) -> int:
        call = self._call
        at, seen = self._read_call(text, at)
        match seen:
            case Seen.MORE:
                pass
            case Seen.BAD if not call.begun:
                self._to_text()
            case Seen.BAD if not call.complete:
                self._state, self._search = HermesParser._in_malformed, 0
            case _ if call.begun:
                self._state, self._lead = HermesParser._behind, Lead(CLOSE)
            case _:
                self._to_text()
        return at

    def _in_malformed(self, text: str, at: int) -> int:
        """No JSON any more: the arguments are what is there, up to the closing mark."""
        end, self._search = self._closes.search(text, at, self._search)
        if end < 0:
            self._release(ToolCallDelta, len(self._buffer) - self._closes.held[self._search])
            return len(text)
        self._release(ToolCallDelta, self._read(text, end) - self._closes.ending[self._search])
        self._drop(self._read(text, end))
        self._to_between()
        return end

    def _behind(self, text: str, at: int) -> int:
        """The closing mark, which some models forget."""
        at, found = self._lead.read(text, at)
        if found is Found.MORE:
            return at
        self._to_between()
        if found is Found.OTHER:
            return self._again(text, at)
        self._drop(self._read(text, at))
        return at

    def _finish(self, reason: FinishReason | None) -> None:  # noqa: ARG002
        held = len(self._buffer)
        if self._state is HermesParser._in_call and self._call.begun:
            self._end_call()
        elif self._state is HermesParser._in_malformed:
            self._release(ToolCallDelta, held)
        elif self._state is HermesParser._behind or (self._called and self._only_blanks()):
            self._drop(held)
        else:
            self._release(TextDelta, held)

    def _only_blanks(self) -> bool:
        return self._state is HermesParser._between and not self._lead.matched

    def _interrupt(self) -> None:
        if self._buffer or self._state not in (HermesParser._between, HermesParser._in_text):
            self._finish(None)
            self._to_text()
