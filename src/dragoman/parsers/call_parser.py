"""Readers of a tool call, and the base of parsers that convert it into events. Knows JSON, but no markers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ..core.events import Event, TextDelta, Token, ToolCallDelta, ToolCallStart
from ..core.message import CustomTool, Tool
from ..core.syntax import ParseContext
from .arguments import ArgumentDecoder, build_argument_decoder
from .base import TextParser
from .json_text import ObjectReader, ReadStatus, ValueReader, decode_string, skip_whitespace


class CallReader(Protocol):
    """Reads one call. Once `has_begun` is true, its name is known and declared and its arguments stream."""

    @property
    def has_begun(self) -> bool: ...

    @property
    def is_undeclared(self) -> bool:
        """The call names no declared tool, so it is only text."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are complete."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def is_custom(self) -> bool: ...

    @property
    def id(self) -> str | None:
        """The id that the model wrote, if any."""
        ...

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read on: MORE, CLOSE after its end, or INVALID at the character that cannot be part of a call."""
        ...

    def is_plain_continuation(self, text: str) -> bool:
        """Whether this text only continues a string in the arguments, and passes unchanged."""
        ...

    @property
    def end_marker(self) -> str:
        """The delimiter that ended the call, if one did."""
        ...

    @property
    def awaits_mark(self) -> bool:
        """Whether a delimiter is allowed here that the call's reader handles itself."""
        ...

    def take_arguments(self) -> str:
        """The new text of the arguments since the last call."""
        ...

    def finish(self) -> None:
        """No more input follows, although the call is incomplete."""
        ...


class JsonCallReader:
    """Reads a call that is one JSON object with a name and arguments.

    name_keys, argument_keys: keys of the two.
    first_keys: an object that begins with another key is no call.
    """

    id: str | None = None
    end_marker = ""
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
        self._object_reader = ObjectReader()
        self._name: list[str] | None = None
        self._raw: list[str] = []
        self._decoder: ArgumentDecoder | None = None
        self._chunks: list[str] = []
        self._role = ""
        self.name = ""
        self.has_begun = False
        """The name is known and declared."""
        self.is_custom = False
        self.is_undeclared = False
        self.is_complete = False
        """The arguments are complete."""
        self._has_arguments = False

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read on: MORE, CLOSE at the end of the object, or INVALID at a character that is not valid JSON, or no
        name.
        """
        while True:
            start, role = pos, self._role
            pos, status = self._object_reader.read(text, pos)
            if role:
                self._append_raw(role, text[start:pos])
            match status:
                case ReadStatus.VALUE:
                    self._role = self._find_role()
                case ReadStatus.END:
                    self._role = ""
                    if not self._finish_value(role):
                        return pos, ReadStatus.INVALID
                case ReadStatus.CLOSE:
                    # The object is closed without its arguments having ended: none were written, or they had no end
                    # of their own.
                    if self._decoder is not None and not self.is_complete:
                        self.is_complete = True
                        self._chunks.append(self._decoder.flush())
                    return pos, status
                case ReadStatus.INVALID:
                    self.finish()
                    return pos, status
                case ReadStatus.MORE:
                    return pos, status
                case ReadStatus.KEY:
                    if self._first_keys is not None and self._object_reader.key not in self._first_keys:
                        return pos, ReadStatus.INVALID
                    self._first_keys = None

    def is_plain_continuation(self, text: str) -> bool:
        decoder = self._decoder
        return (
            self._role == "arguments"
            and decoder is not None
            and decoder.is_transparent
            and self._object_reader.is_plain_continuation(text)
        )

    def _find_role(self) -> str:
        """The role of the value that begins; of each role only the first value counts."""
        key = self._object_reader.key
        # Some models repeat a key; JSON leaves open which one holds, and a name that was announced cannot be taken
        # back.
        if key in self._name_keys and not self._name:
            self._name = []
            return "name"
        if key in self._argument_keys and not self._has_arguments:
            self._has_arguments = True
            return "arguments"
        return ""

    def _append_raw(self, role: str, raw: str) -> None:
        # Raw text is passed on as it arrives: arguments stream in the model's own spelling and are never re-encoded.
        if role == "name" and self._name is not None:
            self._name.append(raw)
        elif self._decoder is not None:
            self._chunks.append(self._decoder.decode(raw))
        elif not self.is_undeclared:
            self._raw.append(raw)

    def _finish_value(self, role: str) -> bool:
        """A value has ended; False if it should be the name but is not a valid one."""
        if role == "name":
            name = decode_string("".join(self._name or ()))
            # A string that is no valid JSON, for example with a lone backslash: the text is no call then.
            if name is None:
                return False
            self.name = name
            self.has_begun = name in self._tools
            self.is_undeclared = not self.has_begun
            if self.has_begun:
                self.is_custom = isinstance(self._tools[name], CustomTool)
                self._decoder = build_argument_decoder(is_custom=self.is_custom)
                # The arguments may precede the name. They are held back until then, since a custom tool decodes them
                # differently.
                self._chunks.append(self._decoder.decode("".join(self._raw)))
                if self.is_complete:
                    self._chunks.append(self._decoder.flush())
            self._raw.clear()
        elif role == "arguments":
            self.is_complete = True
            if self._decoder is not None:
                self._chunks.append(self._decoder.flush())
        return True

    def take_arguments(self) -> str:
        """The new text of the arguments since the last call."""
        arguments = "".join(self._chunks)
        self._chunks.clear()
        return arguments

    def finish(self) -> None:
        """No more input follows, although the object is not closed."""
        if self._decoder is not None and self._has_arguments and not self.is_complete:
            self._chunks.append(self._decoder.flush())
            self.is_complete = self._decoder.is_complete


class ArgumentsReader:
    """A call whose JSON is the arguments alone, as its name precedes it. tool: None if it is not declared."""

    end_marker = ""
    awaits_mark = False

    def __init__(self, name: str, tool: Tool | None, id: str | None = None) -> None:
        self.name = name
        self.id = id
        self.is_custom = isinstance(tool, CustomTool)
        self.has_begun = tool is not None
        self.is_undeclared = tool is None
        self.is_complete = False
        self._decoder = build_argument_decoder(is_custom=self.is_custom)
        self._value_reader: ValueReader | None = None
        self._chunks: list[str] = []

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if self._value_reader is None:
            pos = skip_whitespace(text, pos)
            if pos == len(text):
                return pos, ReadStatus.MORE
            self._value_reader = ValueReader()
        start = pos
        pos, status = self._value_reader.read(text, pos)
        self._chunks.append(self._decoder.decode(text[start:pos]))
        if status is ReadStatus.END:
            self.is_complete = True
            self._chunks.append(self._decoder.flush())
            return pos, ReadStatus.CLOSE
        if status is ReadStatus.INVALID:
            self.finish()
        return pos, status

    def is_plain_continuation(self, text: str) -> bool:
        return (
            self._value_reader is not None
            and not self.is_complete
            and self._decoder.is_transparent
            and self._value_reader.is_plain_continuation(text)
        )

    def take_arguments(self) -> str:
        arguments = "".join(self._chunks)
        self._chunks.clear()
        return arguments

    def finish(self) -> None:
        if self._value_reader is not None and not self.is_complete:
            self._chunks.append(self._decoder.flush())
            self.is_complete = self._decoder.is_complete


class CallParser(TextParser):
    """A parser that reads calls. Text that turns out not to be a call is released as text."""

    def __init__(self, context: ParseContext, single_tokens: Collection[str]) -> None:
        super().__init__(single_tokens)
        self._tools = {tool.name: tool for tool in context.tools}
        self._new_id = context.new_id
        # A placeholder without keys, which recognizes no call; every subclass builds the reader before it reads.
        self._call: CallReader = JsonCallReader(self._tools, (), ())
        self._has_started = False

    def _read_call(self, text: str, pos: int, stop: int | None = None) -> tuple[int, ReadStatus]:
        """Read on in the call, up to `stop`, and release what is parsed: the buffer begins with the call."""
        call = self._call
        pos, status = call.read(text if stop is None else text[:stop], pos)
        n = self._count_consumed(text, pos)
        if call.has_begun:
            self._stream_arguments(call, n)
        # A model also writes JSON that is no call. As text nothing of it is lost; as a call the client could not
        # execute it.
        elif call.is_undeclared or status is not ReadStatus.MORE:
            self._emit_buffered(TextDelta, n)
        if status is not ReadStatus.MORE:
            self._has_started = False
        return pos, status

    def _call_fast_path(self, event: TextDelta) -> Event | None:
        """The event for a delta that only continues a string in the arguments; called only while the buffer is
        empty.
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
            self._events.append(ToolCallDelta(self._choice, arguments, self._take_pending_tokens(call=True)))

    def _build_start(self, choice: int, text: str, tokens: tuple[Token, ...]) -> Event:  # noqa: ARG002
        # An id of the model's own stays: some templates repeat it in the next prompt, and must find the one that was
        # sampled.
        id = self._call.id or self._new_id()
        return ToolCallStart(choice, id, self._call.name, tokens, self._call.is_custom)

    def _end_call(self) -> None:
        """The response ends inside the call."""
        self._call.finish()
        self._stream_arguments(self._call, len(self._buffer))
        self._has_started = False
