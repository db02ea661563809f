"""Calls whose name stands before the JSON of their arguments: `name<separator>{"x": 1}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from ..core.message import Tool
from ..core.syntax import FreeText, JsonValue, Piece, Verbatim
from .base import Found, Lead
from .calls import CallReader, HeadedCall
from .json_text import Seen
from .names import NameReader, written
from .parameters import schema_of


class Headed(Struct, frozen=True):
    """separators: between name and arguments, each a text or "" for nothing at all; the first is the one that is
    written where calls are enforced, between `padding`.

    prefix: stands before every name. call_id: the mark behind the name that precedes an id.
    numbered: the name is written `functions.NAME:3`, and that is the call's id too.
    """

    separators: tuple[str, ...]
    prefix: str = ""
    padding: tuple[str, str] = ("", "")
    call_id: str = ""
    numbered: bool = False

    def shape(self, outer: tuple[str, ...]) -> Headed:  # noqa: ARG002
        return self

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(mark for mark in (*self.separators, self.call_id) if mark)

    @property
    def ends(self) -> tuple[str, ...]:
        return ()

    def begins(self, char: str) -> bool:
        return self.prefix.startswith(char) if self.prefix else char.isalnum() or char == "_"

    def reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:  # noqa: ARG002
        return HeadedReader(self, tools)

    def pieces(self, tool: Tool) -> tuple[Piece, ...]:
        separator, name = self.separators[0].join(self.padding), written(tool.name)
        if self.numbered:
            head = Verbatim(f"{self.prefix}functions.{name}:"), FreeText(separator, pattern="[0-9]{1,2}")
        else:
            head = (Verbatim(f"{self.prefix}{name}{separator}"),)
        return *head, JsonValue(schema_of(tool))


class HeadedReader:
    """Prefix, name, perhaps an id, separator, and then the arguments, which `HeadedCall` reads."""

    ended_by = ""
    awaits_mark = False

    def __init__(self, syntax: Headed, tools: Mapping[str, Tool]) -> None:
        self._syntax = syntax
        self._tools = tools
        self._name = NameReader()
        self._given = NameReader()
        self._call: HeadedCall | None = None
        self._lead = Lead((syntax.prefix,))
        self._state: Callable[[HeadedReader, str, int], tuple[int, Seen]] = (
            HeadedReader._prefix if syntax.prefix else HeadedReader._named
        )

    def read(self, text: str, at: int) -> tuple[int, Seen]:
        seen = Seen.MORE
        while at < len(text) and seen is Seen.MORE:
            if self._call is not None:
                return self._call.read(text, at)
            at, seen = self._state(self, text, at)
        return at, seen

    def _prefix(self, text: str, at: int) -> tuple[int, Seen]:
        at, found = self._lead.read(text, at)
        if found is Found.MARK:
            self._state = HeadedReader._named
        return at, Seen.BAD if found is Found.OTHER else Seen.MORE

    def _named(self, text: str, at: int) -> tuple[int, Seen]:
        at, over = self._name.read(text, at)
        if not over:
            return at, Seen.MORE
        if not self._name.name:
            return at, Seen.BAD
        self._state = HeadedReader._separator
        self._lead = Lead(self._syntax.marks)
        return at, Seen.MORE

    def _separator(self, text: str, at: int) -> tuple[int, Seen]:
        at, found = self._lead.read(text, at)
        match found:
            case Found.MORE:
                return at, Seen.MORE
            case Found.MARK if self._lead.mark == self._syntax.call_id:
                self._state = HeadedReader._id
                return at, Seen.MORE
            case Found.OTHER if self._lead.matched or "" not in self._syntax.separators or text[at] != "{":
                return at, Seen.BAD
            case _:
                self._begin()
                return at, Seen.MORE

    def _id(self, text: str, at: int) -> tuple[int, Seen]:
        at, over = self._given.read(text, at)
        if over:
            self._state = HeadedReader._separator
            self._lead = Lead(self._syntax.marks)
        return at, Seen.MORE

    def _begin(self) -> None:
        raw = name = self._name.name
        id = self._given.name or None
        if self._syntax.numbered:
            head, colon, number = raw.rpartition(":")
            if colon and number.isdecimal():
                name, id = head.removeprefix("functions."), raw
        self._call = HeadedCall(name, self._tools.get(name), id)

    def passes(self, text: str) -> bool:
        return self._call is not None and self._call.passes(text)

    def arguments(self) -> str:
        return "" if self._call is None else self._call.arguments()

    def end(self) -> None:
        """A name alone is a call without arguments, where nothing need stand between the two."""
        alone = "" in self._syntax.separators and not self._syntax.prefix and not self._lead.matched
        if self._call is None and alone and self._name.name in self._tools:
            self._begin()
            assert self._call is not None
            self._call.read("{}", 0)
        elif self._call is not None:
            self._call.end()

    @property
    def begun(self) -> bool:
        return self._call is not None and self._call.begun

    @property
    def undeclared(self) -> bool:
        return self._call is not None and self._call.undeclared

    @property
    def complete(self) -> bool:
        return self._call is not None and self._call.complete

    @property
    def name(self) -> str:
        return "" if self._call is None else self._call.name

    @property
    def custom(self) -> bool:
        return self._call is not None and self._call.custom

    @property
    def id(self) -> str | None:
        return None if self._call is None else self._call.id
