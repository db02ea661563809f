"""Calls that are one JSON object each: `{"name": "f", "arguments": {"x": 1}}`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ..core.message import Tool
from ..core.syntax import FreeText, JsonValue, Piece, Verbatim
from .calls import Call, CallReader
from .parameters import schema_of
from .values import encode

ARGUMENTS = ("arguments", "parameters")


class Objects(Struct, frozen=True):
    """name: the key of the function's name. arguments: the keys of its arguments, the first being the one that is
    written where calls are enforced.

    bare: no mark precedes the call, so that an object that begins with another key is none.
    numbered: the key, written first, under which calls are numbered in a string.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ARGUMENTS
    bare: bool = False
    numbered: str = ""

    def shape(self, outer: tuple[str, ...]) -> Objects:  # noqa: ARG002
        return self

    @property
    def marks(self) -> tuple[str, ...]:
        return ()

    @property
    def ends(self) -> tuple[str, ...]:
        return ()

    def begins(self, char: str) -> bool:
        return char == "{"

    def reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:  # noqa: ARG002
        known = (self.name, *self.arguments, "type", "id", "function") if self.bare else None
        return Call(tools, (self.name,), self.arguments, known)

    def pieces(self, tool: Tool) -> tuple[Piece, ...]:
        name = encode(tool.name).replace("<", "\\u003c")
        rest = f"{encode(self.name)}: {name}, {encode(self.arguments[0])}: "
        arguments = JsonValue(schema_of(tool))
        if not self.numbered:
            return Verbatim("{" + rest), arguments, Verbatim("}")
        number = FreeText(f'", {rest}', pattern="[0-9]{1,2}")
        return Verbatim("{" + f'{encode(self.numbered)}: "'), number, arguments, Verbatim("}")
