"""Calls that are one JSON object each: `{"name": "f", "arguments": {"x": 1}}`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ..core.message import Tool
from ..core.syntax import FreeText, JsonValue, LiteralText, SyntaxPiece
from .call_parser import CallReader, JsonCallReader
from .json_values import encode
from .tool_parameters import build_arguments_schema

ARGUMENT_KEYS = ("arguments", "parameters")


class JsonObjectSyntax(Struct, frozen=True):
    """Calls as JSON objects.

    name_key: key of the function's name.
    argument_keys: keys of its arguments; the first is used for enforced calls.
    is_bare: no delimiter precedes the call, so an object that begins with another key is no call.
    number_key: the first key, under which calls are numbered in a string.
    """

    name_key: str = "name"
    argument_keys: tuple[str, ...] = ARGUMENT_KEYS
    is_bare: bool = False
    number_key: str = ""

    def compile(self, outer_markers: tuple[str, ...]) -> JsonObjectSyntax:  # noqa: ARG002
        return self

    @property
    def markers(self) -> tuple[str, ...]:
        return ()

    @property
    def end_markers(self) -> tuple[str, ...]:
        return ()

    def can_begin_with(self, char: str) -> bool:
        return char == "{"

    def build_reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:  # noqa: ARG002
        first_keys = (self.name_key, *self.argument_keys, "type", "id", "function") if self.is_bare else None
        return JsonCallReader(tools, (self.name_key,), self.argument_keys, first_keys)

    def build_pieces(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        # A delimiter token in a name would end the call; escaped it is the same JSON string, and no token.
        name = encode(tool.name).replace("<", "\\u003c")
        remainder = f"{encode(self.name_key)}: {name}, {encode(self.argument_keys[0])}: "
        arguments = JsonValue(build_arguments_schema(tool))
        if not self.number_key:
            return LiteralText("{" + remainder), arguments, LiteralText("}")
        number = FreeText(f'", {remainder}', pattern="[0-9]{1,2}")
        return LiteralText("{" + f'{encode(self.number_key)}: "'), number, arguments, LiteralText("}")
