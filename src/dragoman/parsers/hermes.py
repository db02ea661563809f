"""Tool calls as JSON between `<tool_call>` marks: NousResearch's Hermes, Qwen2.5, Qwen3 and many others.

<tool_call>
{"name": "f", "arguments": {"x": 1}}
</tool_call>
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from ..core.events import Event, TextDelta, Token, ToolCallDelta, ToolCallStart
from ..core.message import CustomTool, Tool
from ..core.syntax import JsonValue, ParseContext, Parser, Piece, Verbatim
from .arguments import Arguments, CustomInput, FunctionArguments
from .base import Found, Lead, TextParser
from .json_text import ObjectReader, Seen, string
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


class HermesParser(TextParser):
    """Between calls (only white space so far), in text, in a call, behind its JSON.

    Until its name is known a call is held; from then on its arguments stream. What turns out not to be a call of a
    declared tool is text, exactly as it was written. A newline before a call, and white space between calls and
    behind the last one, is the template's and is dropped.
    """

    def __init__(self, context: ParseContext, opens: Marks, closes: Marks, single: Collection[str]) -> None:
        super().__init__(single)
        self._tools = {tool.name: isinstance(tool, CustomTool) for tool in context.tools}
        self._new_id = context.new_id
        self._opens = opens
        self._closes = closes
        self._state: Callable[[HermesParser, str, int], int] = HermesParser._between
        self._lead = Lead(OPEN)
        self._search = 0
        self._called = False
        self._call = Call(self._tools)

    def _quick(self, event: TextDelta) -> Event | None:
        if self._state is HermesParser._in_text and not self._search and not self._opens.occurs(event.text):
            return event
        return None

    def _step(self, text: str, at: int) -> int:
        return self._state(self, text, at)

    def _between(self, text: str, at: int) -> int:
        at, found = self._lead.read(text, at)
        if found is Found.MORE:
            return at
        if found is Found.MARK and self._buffer.is_mark(OPEN, len(text) - at):
            self._drop(self._read(text, at) - len(OPEN))
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
        self._call = Call(self._tools)
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
        begun = call.begun
        at, seen = call.read(text, at)
        if call.begun:
            self._stream(call, self._read(text, at), first=not begun)
        elif call.undeclared or seen is Seen.BAD:
            self._release(TextDelta, self._read(text, at))
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
                self._release(TextDelta, self._read(text, at))
                self._to_text()
        return at

    def _stream(self, call: Call, n: int, *, first: bool) -> None:
        """Pass on what the call has to say; its n characters have been read."""
        if first:
            self._release(self._start, n)
        else:
            self._drop(n)
        arguments = call.arguments()
        if arguments:
            self._out.append(ToolCallDelta(self._choice, arguments, self._settle()))

    def _start(self, choice: int, text: str, tokens: tuple[Token, ...]) -> Event:  # noqa: ARG002
        return ToolCallStart(choice, self._new_id(), self._call.name, tokens, self._call.custom)

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

    def _finish(self) -> None:
        held = len(self._buffer)
        if self._state is HermesParser._in_call and self._call.begun:
            self._call.end()
            self._stream(self._call, held, first=False)
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
            self._finish()
            self._to_text()


class Call:
    """What has been read of one call: its name, and its arguments as they come.

    tools: the declared ones, and whether each is a custom tool.
    """

    def __init__(self, tools: dict[str, bool]) -> None:
        self._tools = tools
        self._object = ObjectReader()
        self._name: list[str] | None = None
        self._raw: list[str] = []
        self._arguments: Arguments | None = None
        self._out: list[str] = []
        self._reads = ""
        self.name = ""
        self.begun = False
        """The name is known and declared."""
        self.custom = False
        self.undeclared = False
        self.complete = False
        """The arguments are all there."""
        self._seen_arguments = False

    def read(self, text: str, at: int) -> tuple[int, Seen]:
        """Read on: MORE, CLOSE at the end of the object, or BAD at the character that is no JSON or no name."""
        while True:
            start, reads = at, self._reads
            at, seen = self._object.read(text, at)
            if reads:
                self._take(reads, text[start:at])
            match seen:
                case Seen.VALUE:
                    self._reads = self._role()
                case Seen.END:
                    self._reads = ""
                    if not self._ended(reads):
                        return at, Seen.BAD
                case Seen.CLOSE:
                    self._close()
                    return at, seen
                case Seen.BAD:
                    self.end()
                    return at, seen
                case Seen.MORE:
                    return at, seen
                case Seen.KEY:
                    pass

    def _role(self) -> str:
        """What the value that begins is to the call; of each kind only the first one counts."""
        key = self._object.key
        if key == "name" and not self._name:
            self._name = []
            return "name"
        if key in ("arguments", "parameters") and not self._seen_arguments:
            self._seen_arguments = True
            return "arguments"
        return ""

    def _take(self, role: str, raw: str) -> None:
        if role == "name" and self._name is not None:
            self._name.append(raw)
        elif self._arguments is not None:
            self._out.append(self._arguments.read(raw))
        elif not self.undeclared:
            self._raw.append(raw)

    def _ended(self, role: str) -> bool:
        """A value is over; False if it was to be the name and is none."""
        if role == "name":
            name = string("".join(self._name or ()))
            if name is None:
                return False
            self._named(name)
        elif role == "arguments":
            self.complete = True
            if self._arguments is not None:
                self._out.append(self._arguments.end())
        return True

    def _named(self, name: str) -> None:
        self.name = name
        self.begun = name in self._tools
        self.undeclared = not self.begun
        if self.begun:
            self.custom = self._tools[name]
            self._arguments = CustomInput() if self.custom else FunctionArguments()
            self._out.append(self._arguments.read("".join(self._raw)))
            if self.complete:
                self._out.append(self._arguments.end())
        self._raw.clear()

    def _close(self) -> None:
        if self._arguments is not None and not self.complete:
            self.complete = True
            self._out.append(self._arguments.end())

    def arguments(self) -> str:
        """What has come of the arguments since this was last asked."""
        out = "".join(self._out)
        self._out.clear()
        return out

    def end(self) -> None:
        """Nothing more will come, although the object is not closed."""
        if self._arguments is not None and self._seen_arguments and not self.complete:
            self._out.append(self._arguments.end())
            self.complete = self._arguments.over
