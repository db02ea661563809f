"""Reads a call in JSON, or its arguments alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..core.message import CustomTool, Tool
from .argument_decoder import ArgumentDecoder, build_argument_decoder
from .json_scanner import ObjectReader, ReadStatus, ValueReader, skip_whitespace
from .json_strings import decode_string


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
    resuming_markers: tuple[str, ...] = ()
    skipped = ""

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
                    self.finish(is_truncated=True)
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

    def finish(self, *, is_truncated: bool) -> None:  # noqa: ARG002
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
    resuming_markers: tuple[str, ...] = ()
    skipped = ""

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
            self.finish(is_truncated=True)
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

    def finish(self, *, is_truncated: bool) -> None:  # noqa: ARG002
        if self._value_reader is not None and not self.is_complete:
            self._chunks.append(self._decoder.flush())
            self.is_complete = self._decoder.is_complete
