"""Expands a schema into alternatives, each self-contained and of one type."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from ..core.errors import Unsupported
from ..core.json_types import JsonObject, JsonValue
from .json_codec import encode
from .schema_keywords import (
    ANNOTATIONS,
    ASSERTIONS,
    LIST_KEYWORDS,
    LOWER_BOUNDS,
    OBJECT_KEYWORDS,
    TEXT_KEYWORDS,
    UPPER_BOUNDS,
)
from .schema_types import find_schema_types, resolve

Schema = JsonObject


_MAX_OPTIONS = 1024
"""Maximum options of all unions in one argument. Unions side by side multiply, so a few
kilobytes can have millions.
"""


_MAX_VALUES = 32 * 1024
"""Maximum values of `enum` in all alternatives of one argument."""


class Alternatives(NamedTuple):
    """The alternatives of a schema. A value matches the schema if it matches one of
    them.

    schemas: the alternatives, each self-contained and of one type.
    unenforced: keywords of the schema that the alternatives leave out.
    """

    schemas: list[Schema]
    unenforced: tuple[str, ...]


def expand_alternatives(schema: Schema) -> Alternatives:
    """Expand a schema into alternatives. Raises Unsupported if no value of it can be
    written, or it is too large.
    """
    expansion = _Expansion()
    try:
        schemas = expansion.expand(schema, set())
    except RecursionError as error:
        raise Unsupported(
            "The references of an argument's schema are nested too deeply."
        ) from error
    if not schemas:
        raise Unsupported(
            "No value of an argument's schema can be written in this model's tool call format."
        )
    return Alternatives(schemas, tuple(expansion.unenforced))


class _Expansion:
    """The expansion of one schema.

    unenforced: the keywords that had to be left out, in order.
    """

    def __init__(self) -> None:
        self.unenforced: dict[str, None] = {}
        self._num_options = self._num_values = 0

    def expand(self, schema: Schema, visited: set[str]) -> list[Schema]:
        """Expand a schema into alternatives.

        visited: references already followed, whose targets are among the alternatives.
        """
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference in visited:
                return []
            visited.add(reference)
        keyword, options = _find_options(schema)
        if options:
            self._num_options += len(options)
            if self._num_options > _MAX_OPTIONS:
                raise Unsupported(
                    f"More than {_MAX_OPTIONS} alternatives of an argument cannot be enforced."
                )
            if keyword == "oneOf" and not _are_disjoint(options):
                self.unenforced[keyword] = None
            siblings = {key: value for key, value in schema.items() if key != keyword}
            # A schema with `anyOf` asserts its other keywords too, so each alternative
            # has to carry them.
            merged = (self._merge(option, siblings) for option in options)
            return [
                part
                for option in merged
                if option is not None
                for part in self.expand(option, visited)
            ]
        types = schema.get("type")
        if "const" in schema:
            return self._filter_values([schema["const"]], schema)
        if isinstance(values := schema.get("enum"), list):
            return self._filter_values(values, schema)
        if isinstance(types, list):
            return [{**schema, "type": name} for name in types]
        return [schema]

    def _merge(self, option: Schema, siblings: Schema) -> Schema | None:
        """Merge an option with its sibling keywords; return None if no value can have
        both types.

        If both have a keyword that cannot be merged, the option's is kept and the
        keyword is recorded as unenforced.
        """
        merged = dict(option)
        for key, value in siblings.items():
            if key not in merged or merged[key] == value or key in ANNOTATIONS:
                merged.setdefault(key, value)
            elif key == "type":
                # An integer is a number too.
                types: list[JsonValue] = [
                    "integer" if "integer" in (first, second) else first
                    for first in _as_types(merged[key])
                    for second in _as_types(value)
                    if first == second or {first, second} == {"integer", "number"}
                ]
                types = list(dict.fromkeys(types))  # pyright: ignore[reportArgumentType]
                if not types:
                    return None
                merged[key] = types[0] if len(types) == 1 else types
            elif (
                key == "required"
                and isinstance(inner := merged[key], list)
                and isinstance(value, list)
            ):
                merged[key] = [*inner, *(name for name in value if name not in inner)]
            elif (
                key == "properties"
                and isinstance(inner := merged[key], dict)
                and isinstance(value, dict)
            ):
                # A property declared on both sides would have to match both schemas;
                # only one of them is enforced.
                self.unenforced.update(dict.fromkeys([key] if inner.keys() & value.keys() else []))
                merged[key] = {**value, **inner}
            elif (
                key in LOWER_BOUNDS | UPPER_BOUNDS
                and _is_number(inner := merged[key])
                and _is_number(value)
            ):
                merged[key] = max(inner, value) if key in LOWER_BOUNDS else min(inner, value)
            else:
                self.unenforced[key] = None
        return merged

    def _filter_values(self, values: list[JsonValue], schema: Schema) -> list[Schema]:
        """Return the listed values that the schema's other keywords allow, as far as
        those can be checked here.
        """
        self._num_values += len(values)
        if self._num_values > _MAX_VALUES:
            raise Unsupported(f"More than {_MAX_VALUES} values of an argument cannot be enforced.")
        for key in schema.keys() & ASSERTIONS - {"enum", "const", *_VALUE_CHECKS}:
            # A keyword that applies to none of the listed values restricts nothing, so
            # it is not reported.
            if any(_applies(key, value) for value in values):
                self.unenforced[key] = None
        checks = [(check, schema[key]) for key, check in _VALUE_CHECKS.items() if key in schema]
        if (
            "const" in schema
            and isinstance(listed := schema.get("enum"), list)
            and schema["const"] not in listed
        ):
            return []
        return [
            {"const": value}
            for value in values
            if all(check(value, limit) for check, limit in checks)
        ]


def _are_disjoint(options: Sequence[Schema]) -> bool:
    """Whether it is certain that no value matches two of these schemas."""
    values = [
        option.get("enum", [option["const"]] if "const" in option else None) for option in options
    ]
    if all(isinstance(value, list) for value in values):
        listed = [encode(item) for value in values if isinstance(value, list) for item in value]
        return len(listed) == len(set(listed))
    types = [name for option in options for name in _as_types(option.get("type", "any"))]
    # Every integer is a number too, so two options of these types do overlap.
    types = ["number" if name == "integer" else name for name in types]
    return "any" not in types and len(types) == len(set(types))


def _as_types(value: JsonValue) -> tuple[str, ...]:
    return find_schema_types({"type": value})


def _is_number(value: JsonValue) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _has_type(value: JsonValue, types: JsonValue) -> bool:
    name = find_schema_types({"const": value})[0]
    return any(
        name == kind or (name == "integer" and kind == "number")
        for kind in find_schema_types({"type": types})
    )


def _compare(
    kind: type | tuple[type, ...], compare: Callable[[float, float], bool]
) -> Callable[[JsonValue, JsonValue], bool]:
    """Build a check that compares a number or a string's length with a limit, and
    allows values of other kinds.
    """

    def check(value: JsonValue, limit: JsonValue) -> bool:
        if (
            not isinstance(value, kind)
            or isinstance(value, bool)
            or not isinstance(limit, int | float)
        ):
            return True
        return compare(len(value) if isinstance(value, str) else value, limit)  # pyright: ignore[reportArgumentType]

    return check


_NUMBERS = (int, float)


_VALUE_CHECKS: Mapping[str, Callable[[JsonValue, JsonValue], bool]] = MappingProxyType(
    {
        "type": _has_type,
        "minLength": _compare(str, operator.ge),
        "maxLength": _compare(str, operator.le),
        "minimum": _compare(_NUMBERS, operator.ge),
        "maximum": _compare(_NUMBERS, operator.le),
        "exclusiveMinimum": _compare(_NUMBERS, operator.gt),
        "exclusiveMaximum": _compare(_NUMBERS, operator.lt),
    }
)


def _applies(keyword: str, value: JsonValue) -> bool:
    """Whether a keyword can restrict a value of this type."""
    if keyword in TEXT_KEYWORDS:
        return isinstance(value, str)
    if keyword in LIST_KEYWORDS:
        return isinstance(value, list)
    if keyword in OBJECT_KEYWORDS:
        return isinstance(value, dict)
    return keyword != "multipleOf" or _is_number(value)


def _find_options(schema: Schema) -> tuple[str, list[Schema]]:
    """Return the keyword that lists alternatives, and the alternatives, each with the
    schema's definitions.
    """
    # Each alternative becomes a separate grammar, so it needs the definitions that it
    # refers to.
    defs: Schema = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    for union in ("anyOf", "oneOf"):
        options = _filter_objects(schema.get(union))
        if options:
            return union, [{**defs, **option} for option in options]
    reference = schema.get("$ref")
    parts = _filter_objects(schema.get("allOf"))
    if isinstance(reference, str) and isinstance(target := resolve(reference, schema), dict):
        return "$ref", [{**defs, **target}]
    return "allOf", [{**defs, **parts[0]}] if len(parts) == 1 and "type" not in schema else []


def _filter_objects(value: JsonValue) -> list[Schema]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
