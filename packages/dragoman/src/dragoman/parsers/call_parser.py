"""The arguments of tool calls, readers of calls in JSON, and the base class of the
parsers that emit call events.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ..core.events import Event, TextDelta, Token, ToolCallDelta, ToolCallStart
from ..core.message import CustomTool, Tool
from ..core.syntax import ParseContext
from .base import TextParser
from .json_text import (
    ObjectReader,
    ReadStatus,
    StringDecoder,
    ValueReader,
    decode_string,
    encode,
    skip_whitespace,
)

# Arguments: decoders of JSON that the model writes, and writers for formats that are
#     not JSON.
#
# The client receives one JSON object for a function; for a custom tool it receives only
# the string under `input`.


class ArgumentDecoder(Protocol):
    """Decodes the raw text of one JSON value, in chunks of any size; the joined results
    are the call's arguments.
    """

    def decode(self, raw: str) -> str: ...

    def flush(self) -> str:
        """Return the remaining text, when the value is complete or truncated."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether no further input can change the text."""
        ...

    @property
    def is_transparent(self) -> bool:
        """Whether plain text inside a string passes unchanged."""
        ...


class FunctionArgumentDecoder:
    """Passes an object unchanged, decodes an object that was encoded twice, as a
    string, and turns null into {}.
    """

    def __init__(self) -> None:
        self._string_decoder: StringDecoder | None = None
        # The beginning of a string until it is clear whether it holds an object: as
        # written, and decoded.
        self._string_start: list[str] | None = None
        self._space: list[str] = []
        self._scalar: list[str] | None = None
        self._has_begun = False

    def decode(self, raw: str) -> str:
        if not self._has_begun and raw:
            self._has_begun = True
            # Some models encode arguments twice, as the text that OpenAI's API itself
            # carries: a string that holds an object.
            if raw[0] == '"':
                self._string_decoder = StringDecoder()
                self._string_start = []
            elif raw[0] not in "{[":
                self._scalar = []
        if self._scalar is not None:
            self._scalar.append(raw)
            return ""
        if self._string_decoder is None:
            return raw
        decoded = self._string_decoder.decode(raw)
        if self._string_start is None:
            return decoded
        self._string_start.append(raw)
        self._space.append(decoded)
        # The first character of the string that is not white space decides whether it
        # holds an object.
        if not decoded.strip():
            return ""
        start = "".join(self._string_start)
        self._string_start = None
        if decoded.lstrip()[0] in "{[":
            return "".join(self._space)
        self._string_decoder = None
        return start

    @property
    def is_complete(self) -> bool:
        return False

    @property
    def is_transparent(self) -> bool:
        return (
            self._has_begun
            and self._scalar is None
            and self._string_start is None
            and (self._string_decoder is None or self._string_decoder.is_plain)
        )

    def flush(self) -> str:
        if self._string_start is not None:
            start = "".join(self._string_start)
            self._string_start = []
            # An empty string means a call without arguments; clients parse the text as
            # JSON.
            return "{}" if len(start) > 1 and start.endswith('"') else start
        if self._string_decoder is not None:
            return self._string_decoder.flush()
        if self._scalar is None:
            return "" if self._has_begun else "{}"
        scalar = "".join(self._scalar)
        self._scalar = []
        return "{}" if scalar == "null" else scalar


class CustomInputDecoder:
    """Decodes the string under `input`; a bare string is the input itself.

    Without such a string the raw text passes unchanged, and nothing is lost.
    """

    def __init__(self) -> None:
        self._object_reader: ObjectReader | None = None
        self._string_decoder: StringDecoder | None = None
        self._pending: list[str] = []
        self._is_complete = False

    def decode(self, raw: str) -> str:
        if self._object_reader is None and self._string_decoder is None and raw:
            if raw[0] == '"':
                self._string_decoder = StringDecoder()
            else:
                self._object_reader = ObjectReader()
        if self._string_decoder is None:
            self._pending.append(raw)
        reader = self._object_reader
        if reader is None:
            return "" if self._string_decoder is None else self._string_decoder.decode(raw)
        pos = 0
        decoded = ""
        while not self._is_complete:
            start = pos
            (pos, status) = reader.read(raw, pos)
            if self._string_decoder is not None:
                decoded += self._string_decoder.decode(raw[start:pos])
            match status:
                case ReadStatus.VALUE if reader.key == "input" and raw[pos] == '"':
                    self._string_decoder = StringDecoder()
                    self._pending.clear()
                case ReadStatus.END if self._string_decoder is not None:
                    self._is_complete = True
                    decoded += self._string_decoder.flush()
                case ReadStatus.CLOSE | ReadStatus.INVALID:
                    self._is_complete = True
                case ReadStatus.MORE:
                    break
                case _:
                    pass
        return decoded

    @property
    def is_complete(self) -> bool:
        return self._is_complete and self._string_decoder is not None

    @property
    def is_transparent(self) -> bool:
        return (
            self._string_decoder is not None
            and not self._is_complete
            and self._string_decoder.is_plain
        )

    def flush(self) -> str:
        pending = "".join(self._pending)
        self._pending = []
        if pending or self._is_complete or self._string_decoder is None:
            return pending
        self._is_complete = True
        return self._string_decoder.flush()


def build_argument_decoder(*, is_custom: bool) -> ArgumentDecoder:
    return CustomInputDecoder() if is_custom else FunctionArgumentDecoder()


def escape_json(text: str) -> str:
    """Return the text escaped for a JSON string, without the quotes around it."""
    return encode(text)[1:-1]


class ArgumentWriter(Protocol):
    """Writes a call's arguments one by one. Each method returns the text to append to
    the call.
    """

    def begin_argument(self, name: str) -> str:
        """Begin an argument."""
        ...

    def begin_string(self) -> str:
        """Begin the argument's value, a string."""
        ...

    def write_text(self, text: str) -> str:
        """Append text to the string."""
        ...

    def end_string(self) -> str: ...

    def write_json(self, text: str) -> str:
        """Append JSON text."""
        ...

    def finish(self) -> str:
        """End the arguments."""
        ...


class ObjectArgumentWriter:
    """Writes the arguments of a function as one JSON object."""

    def __init__(self) -> None:
        self._has_begun = False

    def begin_argument(self, name: str) -> str:
        separator = ", " if self._has_begun else "{"
        self._has_begun = True
        return f"{separator}{encode(name)}: "

    def begin_string(self) -> str:
        return '"'

    def write_text(self, text: str) -> str:
        return escape_json(text)

    def end_string(self) -> str:
        return '"'

    def write_json(self, text: str) -> str:
        return text

    def finish(self) -> str:
        return "}" if self._has_begun else "{}"


class CustomInputWriter:
    """Writes the input of a custom tool: the first argument named `input`, without
    quotes, and no other argument.
    """

    def __init__(self) -> None:
        self._in_input = False
        self._has_input = False

    def begin_argument(self, name: str) -> str:
        self._in_input = name == "input" and not self._has_input
        self._has_input = self._has_input or self._in_input
        return ""

    def begin_string(self) -> str:
        return ""

    def write_text(self, text: str) -> str:
        return text if self._in_input else ""

    def end_string(self) -> str:
        return ""

    def write_json(self, text: str) -> str:
        return text if self._in_input else ""

    def finish(self) -> str:
        return ""


def build_argument_writer(*, is_custom: bool) -> ArgumentWriter:
    return CustomInputWriter() if is_custom else ObjectArgumentWriter()


class CallReader(Protocol):
    """Reads one call. Once `has_begun` is true, its name is known and declared and its
    arguments stream.
    """

    @property
    def has_begun(self) -> bool: ...

    @property
    def is_undeclared(self) -> bool:
        """Whether the call names an undeclared tool; it is then only text."""
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
        """The id that the model wrote; None if it wrote none."""
        ...

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Continue reading at `pos`, and return the new position and the status.

        The status is MORE, CLOSE after the call's end, or INVALID at a character that
        cannot be part of a call.
        """
        ...

    def is_plain_continuation(self, text: str) -> bool:
        """Whether this text only continues a string in the arguments, and passes
        unchanged.
        """
        ...

    @property
    def end_marker(self) -> str:
        """The delimiter that ended the call, if one did."""
        ...

    @property
    def awaits_delimiter(self) -> bool:
        """Whether the reader expects, and handles, a delimiter at this position."""
        ...

    def take_arguments(self) -> str:
        """Return the arguments' text that is new since the previous `take_arguments`."""
        ...

    def finish(self) -> None:
        """End the call: no more input follows, although it is incomplete."""
        ...


class JsonCallReader:
    """Reads a call that is one JSON object with a name and arguments.

    name_keys: keys under which the name may be.
    argument_keys: keys under which the arguments may be.
    first_keys: an object that begins with another key is not a call; None allows every
        key.
    """

    id: str | None = None
    end_marker = ""
    awaits_delimiter = False

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
        """Continue reading at `pos`, and return the new position and the status.

        The status is MORE, CLOSE at the end of the object, or INVALID at a character
        that is not valid JSON, after an invalid name, or after a first key that is not
        in `first_keys`.
        """
        while True:
            start = pos
            role = self._role
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
                    # The object has ended but its arguments have not: it has none, or
                    # their value has no end of its own.
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
                    if (
                        self._first_keys is not None
                        and self._object_reader.key not in self._first_keys
                    ):
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
        """Return the role of the value that begins here; only the first value of each
        role counts.
        """
        key = self._object_reader.key
        # Some models repeat a key. JSON does not define which one counts, and a name
        # that was sent cannot be retracted.
        if key in self._name_keys and not self._name:
            self._name = []
            return "name"
        if key in self._argument_keys and not self._has_arguments:
            self._has_arguments = True
            return "arguments"
        return ""

    def _append_raw(self, role: str, raw: str) -> None:
        # Raw text is passed on as it arrives: arguments stream in the model's own
        # spelling and are never re-encoded.
        if role == "name" and self._name is not None:
            self._name.append(raw)
        elif self._decoder is not None:
            self._chunks.append(self._decoder.decode(raw))
        elif not self.is_undeclared:
            self._raw.append(raw)

    def _finish_value(self, role: str) -> bool:
        """Handle the end of a value. Return False if it should be the name but is not a
        valid one.
        """
        if role == "name":
            name = decode_string("".join(self._name or ()))
            # The string is not valid JSON, for example because of a lone backslash, so
            # the text is not a call.
            if name is None:
                return False
            self.name = name
            self.has_begun = name in self._tools
            self.is_undeclared = not self.has_begun
            if self.has_begun:
                self.is_custom = isinstance(self._tools[name], CustomTool)
                self._decoder = build_argument_decoder(is_custom=self.is_custom)
                # The arguments may precede the name. They are held back until then,
                # since a custom tool decodes them differently.
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
        """Return the arguments' text that is new since the previous `take_arguments`."""
        arguments = "".join(self._chunks)
        self._chunks.clear()
        return arguments

    def finish(self) -> None:
        """End the call: no more input follows, although the object is not closed."""
        if self._decoder is not None and self._has_arguments and not self.is_complete:
            self._chunks.append(self._decoder.flush())
            self.is_complete = self._decoder.is_complete


class ArgumentsReader:
    """Reads the JSON arguments of a call whose name has been read before.

    name: the call's name.
    tool: None if no such tool is declared.
    id: the id that the model wrote, if any.
    """

    end_marker = ""
    awaits_delimiter = False

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
    """Base class of parsers that read calls. Text that turns out not to be a call is
    emitted as text.
    """

    def __init__(self, context: ParseContext, single_tokens: Collection[str]) -> None:
        super().__init__(single_tokens)
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

    def _build_start(self, choice: int, text: str, tokens: tuple[Token, ...]) -> Event:  # noqa: ARG002
        # An id from the model is preserved: some templates repeat it in the next
        # prompt, which must match the sampled tokens.
        id = self._call.id or self._new_id()
        return ToolCallStart(choice, id, self._call.name, tokens, self._call.is_custom)

    def _end_call(self) -> None:
        """Emit the incomplete call when the response ends inside it."""
        self._call.finish()
        self._stream_arguments(self._call, len(self._buffer))
        self._has_started = False
