"""A call's arguments, from the JSON text that the model writes to the text that the call carries.

For a function that is the JSON as it was written; for a custom tool it is the one string inside it. Knows no events.
"""

from __future__ import annotations

from typing import Protocol

from .json_text import ObjectReader, Seen, StringReader


class Arguments(Protocol):
    """Reads the raw text of one JSON value, in any pieces; the texts it returns, joined, are what the call carries."""

    def read(self, raw: str) -> str: ...

    def end(self) -> str:
        """The value is over, or will not go on."""
        ...

    @property
    def over(self) -> bool:
        """Nothing that may follow changes the text."""
        ...

    @property
    def flows(self) -> bool:
        """Plain text that goes on with a string passes as it is."""
        ...


class FunctionArguments:
    """An object passes as it is written. A string is taken for JSON that was quoted once too often; null is {}."""

    def __init__(self) -> None:
        self._string: StringReader | None = None
        self._scalar: list[str] | None = None
        self._begun = False

    def read(self, raw: str) -> str:
        if not self._begun and raw:
            self._begun = True
            if raw[0] == '"':
                self._string = StringReader()
            elif raw[0] not in "{[":
                self._scalar = []
        if self._string is not None:
            return self._string.read(raw)
        if self._scalar is not None:
            self._scalar.append(raw)
            return ""
        return raw

    @property
    def over(self) -> bool:
        return False

    @property
    def flows(self) -> bool:
        return self._begun and self._scalar is None and (self._string is None or self._string.settled)

    def end(self) -> str:
        if self._string is not None:
            return self._string.end()
        if self._scalar is None:
            return "" if self._begun else "{}"
        scalar, self._scalar = "".join(self._scalar), []
        return "{}" if scalar == "null" else scalar


class CustomInput:
    """The string under `input`, decoded as it comes; a bare string is the input itself.

    If there is no such string, what was written passes as it is, so that nothing is lost.
    """

    def __init__(self) -> None:
        self._object: ObjectReader | None = None
        self._string: StringReader | None = None
        self._held: list[str] = []
        self._over = False

    def read(self, raw: str) -> str:
        if self._object is None and self._string is None and raw:
            if raw[0] == '"':
                self._string = StringReader()
            else:
                self._object = ObjectReader()
        if self._string is None:
            self._held.append(raw)
        if self._object is not None:
            return "" if self._over else self._find(self._object, raw)
        return self._string.read(raw) if self._string is not None else ""

    @property
    def over(self) -> bool:
        return self._over and self._string is not None

    @property
    def flows(self) -> bool:
        return self._string is not None and not self._over and self._string.settled

    def _find(self, reader: ObjectReader, raw: str) -> str:
        at, out = 0, ""
        while True:
            start, (at, seen) = at, reader.read(raw, at)
            if self._string is not None:
                out += self._string.read(raw[start:at])
            match seen:
                case Seen.VALUE if reader.key == "input" and raw[at] == '"':
                    self._string = StringReader()
                    self._held.clear()
                case Seen.END if self._string is not None:
                    self._over = True
                    return out + self._string.end()
                case Seen.MORE:
                    return out
                case Seen.CLOSE | Seen.BAD:
                    self._over = True
                    return out
                case _:
                    pass

    def end(self) -> str:
        held, self._held = "".join(self._held), []
        if held or self._over or self._string is None:
            return held
        self._over = True
        return self._string.end()


def arguments_of(*, custom: bool) -> Arguments:
    return CustomInput() if custom else FunctionArguments()
