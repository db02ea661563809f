"""Validation of a JSON text against an untrusted JSON Schema, in bounded time without
network access.

A few nested references can stand for millions of subschemas, all of which a validator
visits. So the size of a schema is measured as if each reference were expanded; a schema
that is too large or recursive is rejected.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast
from urllib.parse import unquote

from jsonschema_rs import RegexOptions, ValidationError, validator_for

from ...core.rust_panics import convert_panics

MAX_WORK = 1_000_000
"""Limit of subschemas times values for validation."""


MAX_WORK_TO_EXPLAIN = 10_000
"""Limit for describing an error, which takes much longer than detecting it."""


class SchemaError(Exception):
    """The text does not match the schema, or the schema cannot be checked; the message
    says which.
    """


def validate_text(text: str, schema: str) -> None:
    """Validate a JSON text against a schema. Raises SchemaError."""
    try:
        value: object = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"it must be valid JSON: {error}") from None
    try:
        definition: object = json.loads(schema)
        work = _SchemaSize(definition).measure(definition) * _count_values(value)
        if work > MAX_WORK:
            raise SchemaError("this JSON Schema is too large to be checked")
        # Linear-time regular expressions prevent ReDoS; external references are never
        # fetched.
        with convert_panics(lambda: SchemaError("this JSON Schema cannot be checked")):
            validator = validator_for(
                schema, retriever=_reject_reference, pattern_options=RegexOptions()
            )
            is_valid = validator.is_valid(value)
    except RecursionError:
        raise SchemaError("this JSON Schema is nested too deeply to be checked") from None
    except (ValidationError, ValueError) as error:
        # The first line is the reason; the library appends the whole schema.
        reason = str(error).partition("\n")[0]
        raise SchemaError(f"this JSON Schema cannot be checked: {reason}") from None
    if not is_valid:
        error = next(validator.iter_errors(value), None) if work <= MAX_WORK_TO_EXPLAIN else None
        raise SchemaError(f"it does not follow the schema{': ' + error.message if error else ''}")


class _SchemaSize:
    """Measures the expanded size of a schema. A reference must point into the schema
    and must not be recursive.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._sizes: dict[str, int] = {}
        self._open: set[str] = set()

    def measure(self, part: object) -> int:
        if isinstance(part, list):
            return 1 + sum(map(self.measure, cast("list[object]", part)))
        if not isinstance(part, dict):
            return 1
        items = cast("dict[str, object]", part)
        reference = items.get("$ref")
        # Their targets depend on the path of the evaluation, so their size is not known
        # beforehand.
        if "$dynamicRef" in items or "$recursiveRef" in items:
            raise ValueError("only plain references are supported")
        own_size = 1 + sum(map(self.measure, items.values()))
        if not isinstance(reference, str):
            return own_size
        if reference in self._open:
            raise ValueError(f"{reference} contains itself")
        # Each target is measured once: otherwise nested references would take as long
        # to measure as to expand.
        if reference not in self._sizes:
            self._open.add(reference)
            self._sizes[reference] = self.measure(self._resolve_reference(reference))
            self._open.remove(reference)
        return own_size + self._sizes[reference]

    def _resolve_reference(self, reference: str) -> object:
        """Resolve a reference in JSON Pointer's URI fragment form (RFC 6901, section
        6).
        """
        if reference != "#" and not reference.startswith("#/"):
            _reject_reference(reference)
        target = self._root
        for name in unquote(reference).split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            try:
                # JSON Pointer indexes arrays by decimal text.
                target = cast("Any", target)[int(key) if isinstance(target, list) else key]
            except (KeyError, IndexError, TypeError, ValueError):
                _reject_reference(reference)
        return target


def _count_values(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_count_values, cast("dict[str, object]", value).values()))
    return (
        1 + sum(map(_count_values, cast("list[object]", value))) if isinstance(value, list) else 1
    )


def _reject_reference(reference: str) -> NoReturn:
    raise ValueError(f"{reference} does not exist")


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
