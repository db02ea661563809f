"""Every parameter of every dialect and what becomes of it: the rules that readers obey, and the docs' table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from msgspec import Raw, Struct

from ..core.errors import Unsupported
from .body import Body, Shape, json_value

MAX_NAME, MAX_UNKNOWN = 64, 32
"""Of the fields that nobody knows: characters of a name that are told, and how many names."""


T = TypeVar("T", bound=Struct)


class Status(StrEnum):
    HONOURED = "honoured"
    """Does what its vendor says."""
    ACCEPTED = "accepted"
    """Changes nothing by its own definition, or changes nothing here; silently fine."""
    WARNED = "warned"
    """Not done, and said so in a warning; its absence does not make the answer wrong."""
    REFUSED = "refused"
    """A 400 that names it, unless it asks for what happens anyway."""


class Support(Struct, frozen=True):
    """One row. harmless: the values, besides null, with which a refused or warned field asks for nothing."""

    name: str
    dialect: str
    status: Status
    note: str = ""
    harmless: tuple[object, ...] = ()


class Rules:
    """The rows of one dialect."""

    def __init__(self, rows: tuple[Support, ...]) -> None:
        self.rows = rows
        self._rows = {row.name: row for row in rows}

    def judge(self, fields: Mapping[str, Raw]) -> tuple[list[str], tuple[str, ...]]:
        """Warnings, and the names that nobody knows. Raises Unsupported at a refused one.

        fields: those that the dialect's struct does not know.
        """
        warnings: list[str] = []
        unknown: list[str] = []
        for name, raw in fields.items():
            row = self._rows.get(name)
            if row is None:
                unknown.append(name[:MAX_NAME])
            elif row.status in (Status.REFUSED, Status.WARNED) and not _harmless(row, raw):
                if row.status is Status.REFUSED:
                    raise Unsupported(f"'{name}' is not supported here: {row.note}.", param=name)
                warnings.append(f"{name}: {row.note}")
        return warnings, tuple(unknown[:MAX_UNKNOWN])


def _harmless(row: Support, raw: Raw) -> bool:
    value = json_value(raw, row.name)
    return value is None or any(value == fine and isinstance(value, type(fine)) for fine in row.harmless)


def honoured(dialect: str, *names: str, note: str = "") -> tuple[Support, ...]:
    return tuple(Support(name, dialect, Status.HONOURED, note) for name in names)


def accepted(dialect: str, *names: str, note: str) -> tuple[Support, ...]:
    return tuple(Support(name, dialect, Status.ACCEPTED, note) for name in names)


def warned(dialect: str, name: str, note: str, *harmless: object) -> tuple[Support, ...]:
    return (Support(name, dialect, Status.WARNED, note, harmless),)


def refused(dialect: str, name: str, note: str, *harmless: object) -> tuple[Support, ...]:
    return (Support(name, dialect, Status.REFUSED, note, harmless),)


def read_part(raw: bytes, shape: Shape[T], rules: Rules, at: str) -> tuple[T, list[str], tuple[str, ...]]:
    """An object that stands in a body under the name `at`, what it warns of, and the names that nobody knows.

    raw: its JSON text; empty or null is an empty object. Raises as `Body` and `Rules.judge` do.
    """
    parsed = Body(b"{}" if raw in (b"", b"null") else raw)
    part = parsed.read(shape)
    warnings, unknown = rules.judge(parsed.others(shape.names))
    return part, warnings, tuple(f"{at}.{name}" for name in unknown)
