"""Writes the arguments of a call that the model wrote in another format than JSON."""

from __future__ import annotations

from typing import Protocol

from .json_codec import encode


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
