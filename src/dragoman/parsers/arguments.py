"""The arguments of a call: decoded from the JSON text that the model writes, or written one by one. Knows no model's
syntax and no events.

For a function, the text that the call carries is one JSON object; for a custom tool it is the one string in it, under
`input`, and nothing else.
"""

from __future__ import annotations

from typing import Protocol

from .json_text import ObjectReader, ReadStatus, StringDecoder
from .json_values import encode


class ArgumentDecoder(Protocol):
    """Decodes the raw text of one JSON value, in any chunks; the joined results are the call's text."""

    def decode(self, raw: str) -> str: ...

    def flush(self) -> str:
        """The value is complete or truncated: return the rest."""
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
    """Passes an object unchanged. An object in a string is JSON that was quoted once too often; null becomes {}."""

    def __init__(self) -> None:
        self._string_decoder: StringDecoder | None = None
        # The beginning of a string that may still be one or hold an object: as written, and its white space decoded.
        self._string_start: list[str] | None = None
        self._space: list[str] = []
        self._scalar: list[str] | None = None
        self._has_begun = False

    def decode(self, raw: str) -> str:
        if not self._has_begun and raw:
            self._has_begun = True
            # Some models encode arguments twice, as the text that OpenAI's API itself carries: a string that holds an
            # object.
            if raw[0] == '"':
                self._string_decoder, self._string_start = StringDecoder(), []
            elif raw[0] not in "{[":
                self._scalar = []
        if self._string_decoder is not None:
            return self._decode_string(self._string_decoder, raw)
        if self._scalar is not None:
            self._scalar.append(raw)
            return ""
        return raw

    def _decode_string(self, decoder: StringDecoder, raw: str) -> str:
        """The first character of a string that is no white space decides whether it holds an object."""
        decoded = decoder.decode(raw)
        if self._string_start is None:
            return decoded
        self._string_start.append(raw)
        self._space.append(decoded)
        # Leading white space decides nothing yet.
        if not decoded.strip():
            return ""
        start, self._string_start = "".join(self._string_start), None
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
            start, self._string_start = "".join(self._string_start), []
            # An empty string in the place of arguments is a call without any; clients parse the text as JSON.
            return "{}" if len(start) > 1 and start.endswith('"') else start
        if self._string_decoder is not None:
            return self._string_decoder.flush()
        if self._scalar is None:
            return "" if self._has_begun else "{}"
        scalar, self._scalar = "".join(self._scalar), []
        return "{}" if scalar == "null" else scalar


class CustomInputDecoder:
    """Decodes the string under `input`; a bare string is the input itself.

    Without such a string the raw text passes unchanged, so that nothing is lost.
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
        if self._object_reader is not None:
            return "" if self._is_complete else self._decode_object(self._object_reader, raw)
        return self._string_decoder.decode(raw) if self._string_decoder is not None else ""

    @property
    def is_complete(self) -> bool:
        return self._is_complete and self._string_decoder is not None

    @property
    def is_transparent(self) -> bool:
        return self._string_decoder is not None and not self._is_complete and self._string_decoder.is_plain

    def _decode_object(self, reader: ObjectReader, raw: str) -> str:
        pos, decoded = 0, ""
        while True:
            start, (pos, status) = pos, reader.read(raw, pos)
            if self._string_decoder is not None:
                decoded += self._string_decoder.decode(raw[start:pos])
            match status:
                case ReadStatus.VALUE if reader.key == "input" and raw[pos] == '"':
                    self._string_decoder = StringDecoder()
                    self._pending.clear()
                case ReadStatus.END if self._string_decoder is not None:
                    self._is_complete = True
                    return decoded + self._string_decoder.flush()
                case ReadStatus.MORE:
                    return decoded
                case ReadStatus.CLOSE | ReadStatus.INVALID:
                    self._is_complete = True
                    return decoded
                case _:
                    pass

    def flush(self) -> str:
        pending, self._pending = "".join(self._pending), []
        if pending or self._is_complete or self._string_decoder is None:
            return pending
        self._is_complete = True
        return self._string_decoder.flush()


def build_argument_decoder(*, is_custom: bool) -> ArgumentDecoder:
    return CustomInputDecoder() if is_custom else FunctionArgumentDecoder()


def escape_json(text: str) -> str:
    """The text, escaped for a JSON string."""
    return encode(text)[1:-1]


class ArgumentWriter(Protocol):
    """Each method returns the text to append to the call."""

    def begin_argument(self, name: str) -> str:
        """Begin an argument."""
        ...

    def begin_string(self) -> str:
        """The argument is a string."""
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
