"""Warnings for the client, of parts of its request that have no effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ..core.errors import RequestError
from ..core.field_names import FieldNames
from ..dialects.json_encoding import escape_line_breaks, replace_surrogates


class WarningSource(Protocol):
    """A parsed body with warnings and the names of unknown fields."""

    @property
    def warnings(self) -> tuple[str, ...]: ...

    @property
    def unknown(self) -> tuple[str, ...]: ...


def collect_warnings(call: WarningSource, *, strict: bool) -> tuple[str, ...]:
    """Return the warnings for the client.

    Raises:
        RequestError: the server is strict and there are warnings.
    """
    if not call.unknown and not call.warnings:
        return ()
    reject_unknown_fields(call.unknown, strict=strict)
    if strict and call.warnings:
        raise RequestError(f"This server is strict (--strict): {call.warnings[0]}.")
    return (*call.warnings, *(f"{name} is ignored: unknown field" for name in call.unknown))


def reject_unknown_fields(unknown: tuple[str, ...], *, strict: bool) -> None:
    if strict and unknown:
        raise RequestError(
            f"Unknown field `{unknown[0]}`.", param=unknown[0], code="unknown_parameter"
        )


def join_warnings(
    warnings: tuple[str, ...], field_names: FieldNames, later: tuple[str, ...]
) -> tuple[str, ...]:
    """Return a call's warnings together with those that its engine reports.

    field_names: the field names of the client's dialect.
    """
    if not later and len(warnings) < 2:
        return warnings
    return tuple(dict.fromkeys((*warnings, *map(field_names.rename_warning, later))))


def render_warnings(warnings: Sequence[str]) -> bytes:
    """Render warnings as a JSON array in one line."""
    return escape_line_breaks(
        msgspec.json.encode([replace_surrogates(warning) for warning in warnings])
    )


def add_warnings(body: bytes, warnings: bytes) -> bytes:
    """Add the field `dragoman_warnings` to a body that is a JSON object.

    warnings: a JSON array; empty for none.
    """
    # The field is appended after a comma, which would be invalid JSON in an empty
    # object.
    if not warnings or not body.startswith(b"{") or not body.endswith(b"}") or body == b"{}":
        return body
    return b'%s,"dragoman_warnings":%s}' % (body[:-1], warnings)
