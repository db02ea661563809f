"""The support of every parameter of every dialect: the rules that readers apply, and the source of the docs' table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from msgspec import Raw, Struct

from ..core.errors import Unsupported
from .body import BodySchema, ParsedBody, read_json_value

MAX_NAME, MAX_UNKNOWN = 64, 32
"""Limits on reported unknown fields: characters of a name, and number of names."""


T = TypeVar("T", bound=Struct)


class SupportStatus(StrEnum):
    HONOURED = "honoured"
    """Works as the vendor documents it."""
    ACCEPTED = "accepted"
    """Accepted silently, because it has no effect by definition or no effect here."""
    WARNED = "warned"
    """Ignored with a warning; the answer is not wrong without it."""
    REFUSED = "refused"
    """Rejected with a 400 that names it, unless the value requests the default behaviour."""


class ParameterSupport(Struct, frozen=True):
    """One row.

    harmless: the values, besides null, with which a rejected or warned field has no effect.
    """

    name: str
    dialect: str
    status: SupportStatus
    note: str = ""
    harmless: tuple[object, ...] = ()


class ParameterTable:
    """The rows of one dialect."""

    def __init__(self, rows: tuple[ParameterSupport, ...]) -> None:
        self.rows = rows
        self._rows = {row.name: row for row in rows}

    def classify_body(self, parsed: ParsedBody, *schemas: BodySchema[Any]) -> tuple[list[str], tuple[str, ...]]:
        """Return the warnings, and the unknown names at the top level and below it. Raises as `classify`.

        schemas: what the body has been decoded to.
        """
        warnings, unknown = self.classify(parsed.find_other_fields(*[schema.names for schema in schemas]))
        nested = [name for schema in schemas for name in schema.nested.find_unknown(parsed.fields)]
        return warnings, (*unknown, *nested)[:MAX_UNKNOWN]

    def classify(self, fields: Mapping[str, Raw]) -> tuple[list[str], tuple[str, ...]]:
        """Return the warnings and the unknown names. Raises Unsupported for a rejected field.

        fields: those that the dialect's struct does not define.
        """
        warnings: list[str] = []
        unknown: list[str] = []
        for name, raw in fields.items():
            row = self._rows.get(name)
            if row is None:
                unknown.append(name[:MAX_NAME])
            elif row.status in (SupportStatus.REFUSED, SupportStatus.WARNED) and not _is_harmless(row, raw):
                if row.status is SupportStatus.REFUSED:
                    raise Unsupported(f"'{name}' is not supported here: {row.note}.", param=name)
                warnings.append(f"{name}: {row.note}")
        return warnings, tuple(unknown[:MAX_UNKNOWN])


def _is_harmless(row: ParameterSupport, raw: Raw) -> bool:
    value = read_json_value(raw, row.name)
    # Not isinstance: true is an int to Python.
    return value is None or any(
        value == harmless_value and type(value) is type(harmless_value) for harmless_value in row.harmless
    )


def honour(dialect: str, *names: str, note: str = "") -> tuple[ParameterSupport, ...]:
    return tuple(ParameterSupport(name, dialect, SupportStatus.HONOURED, note) for name in names)


def accept(dialect: str, *names: str, note: str) -> tuple[ParameterSupport, ...]:
    return tuple(ParameterSupport(name, dialect, SupportStatus.ACCEPTED, note) for name in names)


def warn(dialect: str, name: str, note: str, *harmless: object) -> tuple[ParameterSupport, ...]:
    return (ParameterSupport(name, dialect, SupportStatus.WARNED, note, harmless),)


def reject(dialect: str, name: str, note: str, *harmless: object) -> tuple[ParameterSupport, ...]:
    return (ParameterSupport(name, dialect, SupportStatus.REFUSED, note, harmless),)


def read_part(
    raw: bytes, schema: BodySchema[T], table: ParameterTable, path: str
) -> tuple[T, list[str], tuple[str, ...]]:
    """Decode an object nested at `path`; returns it with its warnings and unknown names.

    raw: its JSON text; empty or null is an empty object. Raises as `ParsedBody` and `ParameterTable.classify` do.
    """
    parsed = ParsedBody(b"{}" if raw in (b"", b"null") else raw)
    part = parsed.decode(schema)
    warnings, unknown = table.classify_body(parsed, schema)
    return part, warnings, tuple(f"{path}.{name}" for name in unknown)
