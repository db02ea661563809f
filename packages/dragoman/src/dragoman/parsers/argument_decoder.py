"""Decodes the JSON arguments that a model writes.

The client receives one JSON object for a function; for a custom tool it receives only
the string under `input`.
"""

from __future__ import annotations

from typing import Protocol

from .json_scanner import ObjectReader, ReadStatus
from .json_strings import StringDecoder


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
