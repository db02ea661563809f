"""Calls that models of one family write in two ways, which their first character tells apart."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ..core.message import Tool
from ..core.syntax import Piece
from .calls import CallReader
from .frame import Shape, Syntax


class Either(Struct, frozen=True):
    """written: the one that is written where calls are enforced."""

    written: Syntax
    other: Syntax

    def shape(self, outer: tuple[str, ...]) -> EitherShape:
        return EitherShape(self.written.shape(outer), self.other.shape(outer))


class EitherShape(Struct, frozen=True):
    written: Shape
    other: Shape

    @property
    def marks(self) -> tuple[str, ...]:
        return *self.written.marks, *self.other.marks

    @property
    def ends(self) -> tuple[str, ...]:
        return *self.written.ends, *self.other.ends

    def begins(self, char: str) -> bool:
        return self.written.begins(char) or self.other.begins(char)

    def reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:
        return (self.written if self.written.begins(char) else self.other).reader(tools, char)

    def pieces(self, tool: Tool) -> tuple[Piece, ...]:
        return self.written.pieces(tool)
