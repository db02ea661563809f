"""Calls that models of one family write in two ways, distinguished by their first character."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ..core.message import Tool
from ..core.syntax import SyntaxPiece
from .call_parser import CallReader
from .delimited_calls import CallSyntax, CallSyntaxSpec


class AlternativeSyntaxes(Struct, frozen=True):
    """Two call syntaxes. primary: the one for enforced calls."""

    primary: CallSyntaxSpec
    fallback: CallSyntaxSpec

    def compile(self, outer_markers: tuple[str, ...]) -> CompiledAlternatives:
        return CompiledAlternatives(self.primary.compile(outer_markers), self.fallback.compile(outer_markers))


class CompiledAlternatives(Struct, frozen=True):
    primary: CallSyntax
    fallback: CallSyntax

    @property
    def markers(self) -> tuple[str, ...]:
        return *self.primary.markers, *self.fallback.markers

    @property
    def end_markers(self) -> tuple[str, ...]:
        return *self.primary.end_markers, *self.fallback.end_markers

    def can_begin_with(self, char: str) -> bool:
        return self.primary.can_begin_with(char) or self.fallback.can_begin_with(char)

    def build_reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:
        return (self.primary if self.primary.can_begin_with(char) else self.fallback).build_reader(tools, char)

    def build_pieces(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        return self.primary.build_pieces(tool)
