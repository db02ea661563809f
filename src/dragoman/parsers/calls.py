"""A tool call as it is read, and the part of a parser that turns it into events. Knows JSON, but no marks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ..core.events import Event, TextDelta, Token, ToolCallDelta, ToolCallStart
from ..core.message import CustomTool, Tool
from ..core.syntax import ParseContext
from .arguments import Arguments, arguments_of
from .base import TextParser
from .json_text import ObjectReader, Seen, ValueReader, blanks, string


class CallReader(Protocol):
    """Reads one call. Once it has begun, its name is known and declared and its arguments stream."""

    @property
    def begun(self) -> bool: ...

    @property
    def undeclared(self) -> bool:
        """It calls what is no tool, and is only text."""
        ...

    @property
    def complete(self) -> bool:
        """The arguments are all there."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def custom(self) -> bool: ...

    @property
    def id(self) -> str | None:
        """The one that the model has given it."""
        ...

    def read(self, text: str, at: int) -> tuple[int, Seen]:
        """Read on: MORE, CLOSE behind its end, or BAD at the character that cannot be part of a call."""
        ...

    def passes(self, text: str) -> bool:
        """Whether this text only goes on with a string in the arguments, and is that part of them as it stands."""
        ...

    @property
    def ended_by(self) -> str:
        """The mark of the frame that has ended it, if it was that."""
        ...

    @property
    def awaits_mark(self) -> bool:
        """A mark of the frame may stand here, which it reads itself."""
        ...

    def arguments(self) -> str:
        """What has come of the arguments since this was last asked."""
        ...

    def end(self) -> None:
        """Nothing more will come, although the call is not whole."""
        ...


class Call:
    """What has been read of a call that is one JSON object: its name, and its arguments as they come.

    name_keys, argument_keys: where to find them. first_keys: an object that begins with another key is no call.
    """

    id: str | None = None
    ended_by = ""
    awaits_mark = False

    def __init__(
        self,
        tools: Mapping[str, Tool],
        name_keys: Collection[str],
        argument_keys: Collection[str],
        first_keys: Collection[str] | None = None,
    ) -> None:
        self._first_keys = first_keys
        self._name_keys = name_keys
        self._argument_keys = argument_keys
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
        """Read on: MORE, CLOSE at the end of the object, or BAD at the character that is not valid JSON, or no name."""
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
                    if self._first_keys is not None and self._object.key not in self._first_keys:
                        return at, Seen.BAD
                    self._first_keys = None

    def passes(self, text: str) -> bool:
        arguments = self._arguments
        return self._reads == "arguments" and arguments is not None and arguments.flows and self._object.passes(text)

    def _role(self) -> str:
        """What the value that begins is to the call; of each kind only the first one counts."""
        key = self._object.key
        if key in self._name_keys and not self._name:
            self._name = []
            return "name"
        if key in self._argument_keys and not self._seen_arguments:
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
            self.custom = isinstance(self._tools[name], CustomTool)
            self._arguments = arguments_of(custom=self.custom)
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


class HeadedCall:
    """A call whose name stood before it, so that its JSON is the arguments alone. tool: None if it is not declared."""

    ended_by = ""
    awaits_mark = False

    def __init__(self, name: str, tool: Tool | None, id: str | None = None) -> None:
        self.name = name
        self.id = id
        self.custom = isinstance(tool, CustomTool)
        self.begun = tool is not None
        self.undeclared = tool is None
        self.complete = False
        self._arguments = arguments_of(custom=self.custom)
        self._value: ValueReader | None = None
        self._out: list[str] = []

    def read(self, text: str, at: int) -> tuple[int, Seen]:
        if self._value is None:
            at = blanks(text, at)
            if at == len(text):
                return at, Seen.MORE
            self._value = ValueReader()
        start = at
        at, seen = self._value.read(text, at)
        self._out.append(self._arguments.read(text[start:at]))
        if seen is Seen.END:
            self.complete = True
            self._out.append(self._arguments.end())
            return at, Seen.CLOSE
        if seen is Seen.BAD:
            self.end()
        return at, seen

    def passes(self, text: str) -> bool:
        return self._value is not None and not self.complete and self._arguments.flows and self._value.passes(text)

    def arguments(self) -> str:
        out = "".join(self._out)
        self._out.clear()
        return out

    def end(self) -> None:
        if self._value is not None and not self.complete:
            self._out.append(self._arguments.end())
            self.complete = self._arguments.over


class CallParser(TextParser):
    """A parser that reads calls. What of a call turns out to be none is released as text."""

    def __init__(self, context: ParseContext, single: Collection[str]) -> None:
        super().__init__(single)
        self._tools = {tool.name: tool for tool in context.tools}
        self._new_id = context.new_id
        self._call: CallReader = Call(self._tools, (), ())
        self._started = False

    def _read_call(self, text: str, at: int, stop: int | None = None) -> tuple[int, Seen]:
        """Read on in the call, up to `stop`, and release what is understood of it: the buffer begins with the call."""
        call = self._call
        at, seen = call.read(text if stop is None else text[:stop], at)
        n = self._read(text, at)
        if call.begun:
            self._stream(call, n)
        elif call.undeclared or seen is not Seen.MORE:
            self._release(TextDelta, n)
        if seen is not Seen.MORE:
            self._started = False
        return at, seen

    def _quick_call(self, event: TextDelta) -> Event | None:
        """What the delta becomes if it only goes on with a string in the arguments; nothing is held then."""
        if self._started and self._call.passes(event.text):
            return ToolCallDelta(event.choice, event.text, event.tokens)
        return None

    def _stream(self, call: CallReader, n: int) -> None:
        if self._started:
            self._drop(n)
        else:
            self._started = True
            self._release(self._start, n)
        arguments = call.arguments()
        if arguments:
            self._out.append(ToolCallDelta(self._choice, arguments, self._settle(call=True)))

    def _start(self, choice: int, text: str, tokens: tuple[Token, ...]) -> Event:  # noqa: ARG002
        id = self._call.id or self._new_id()
        return ToolCallStart(choice, id, self._call.name, tokens, self._call.custom)

    def _end_call(self) -> None:
        """The answer ends within the call."""
        self._call.end()
        self._stream(self._call, len(self._buffer))
        self._started = False
