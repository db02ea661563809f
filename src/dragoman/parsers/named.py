"""Arguments that a model writes one by one, as the text that the call carries. Knows no syntax of any model.

For a function that is one JSON object; for a custom tool it is the string under `input`, and nothing else.
"""

from __future__ import annotations

from typing import Protocol

from .values import encode


def quoted(text: str) -> str:
    """The text as it stands within a JSON string."""
    return encode(text)[1:-1]


class Named(Protocol):
    """Each method returns what it adds to the text of the call."""

    def key(self, name: str) -> str:
        """The argument that begins."""
        ...

    def open(self) -> str:
        """It is a string."""
        ...

    def text(self, text: str) -> str:
        """The next of its string."""
        ...

    def close(self) -> str: ...

    def json(self, text: str) -> str:
        """The next of its JSON."""
        ...

    def end(self) -> str:
        """There are no more arguments."""
        ...


class NamedObject:
    def __init__(self) -> None:
        self._begun = False

    def key(self, name: str) -> str:
        before = ", " if self._begun else "{"
        self._begun = True
        return f"{before}{encode(name)}: "

    def open(self) -> str:
        return '"'

    def text(self, text: str) -> str:
        return quoted(text)

    def close(self) -> str:
        return '"'

    def json(self, text: str) -> str:
        return text

    def end(self) -> str:
        return "}" if self._begun else "{}"


class NamedInput:
    def __init__(self) -> None:
        self._wanted = False
        self._had = False

    def key(self, name: str) -> str:
        self._wanted = name == "input" and not self._had
        self._had = self._had or self._wanted
        return ""

    def open(self) -> str:
        return ""

    def text(self, text: str) -> str:
        return text if self._wanted else ""

    def close(self) -> str:
        return ""

    def json(self, text: str) -> str:
        return text if self._wanted else ""

    def end(self) -> str:
        return ""


def named(*, custom: bool) -> Named:
    return NamedInput() if custom else NamedObject()
