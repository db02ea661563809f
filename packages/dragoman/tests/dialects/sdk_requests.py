"""Builds requests that together have every field and every variant of a body that an
official SDK declares as a `TypedDict`.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import typing_extensions

Json = Any
_WRAPPERS = (typing.Required, typing.NotRequired, Annotated)
_ARRAYS = (list, collections.abc.Iterable, collections.abc.Sequence)
_SCALARS: Mapping[Any, Json] = {bool: True, int: 1, float: 1.0}


class SdkField(NamedTuple):
    """One value of one field.

    path: where it is, such as `tools[]<function>.strict` or `service_tier=flex`; the
        variant of an object is its type, its role, or the name of its `TypedDict`.
    body: an object with this value.
    rest: the same object without the field; None if the field is required, or if `path`
        is a variant and no field.
    """

    path: str
    body: Json
    rest: Json | None

    @property
    def name(self) -> str:
        """The path without a value."""
        return self.path.partition("=")[0]


class FieldGenerator:
    """Generates the fields of SDK types.

    examples: values of fields whose declared type is wider than what is valid, by the
        name of the field.
    """

    def __init__(self, examples: Mapping[str, Json]) -> None:
        self._examples = examples
        self._hints: dict[Any, dict[str, Any]] = {}
        self._required: dict[Any, frozenset[str]] = {}

    def build_minimal(self, annotation: Any, name: str = "") -> Json:
        """Return the smallest value of a type."""
        declared = _unwrap(annotation)
        if typing_extensions.is_typeddict(declared):
            fields = self._list_fields(declared)
            return {
                name: self.build_minimal(fields[name], name)
                for name in fields
                if name in self._required[declared]
            }
        origin, args = get_origin(declared), get_args(declared)
        if origin is Literal:
            return args[0]
        if origin in _ARRAYS:
            return [self.build_minimal(args[0], name)]
        if name in self._examples:
            return self._examples[name]
        if origin in (Union, types.UnionType):
            return self.build_minimal(args[0], name)
        is_object = origin in (dict, collections.abc.Mapping)
        return {} if is_object else _SCALARS.get(declared, "x")

    def generate(self, annotation: Any) -> Iterator[SdkField]:
        """Yield every field of a body, and every variant of its values."""
        yield from self._generate(annotation, "", "", frozenset())

    def _generate(
        self, annotation: Any, path: str, name: str, outer: frozenset[Any]
    ) -> Iterator[SdkField]:
        declared = _unwrap(annotation)
        origin, args = get_origin(declared), get_args(declared)
        if typing_extensions.is_typeddict(declared):
            yield from self._generate_object(declared, path, outer)
        elif origin is Literal:
            for value in args:
                yield SdkField(f"{path}={value}", value, None)
        elif origin in (Union, types.UnionType):
            for arg in args:
                if arg is not types.NoneType:
                    yield from self._generate(arg, path, name, outer)
        elif origin in _ARRAYS:
            for field in self._generate(args[0], path + "[]", name, outer):
                yield field._replace(
                    body=[field.body], rest=None if field.rest is None else [field.rest]
                )
        else:
            yield SdkField(path, self.build_minimal(declared, name), None)

    def _generate_object(
        self, declared: Any, path: str, outer: frozenset[Any]
    ) -> Iterator[SdkField]:
        base = self.build_minimal(declared)
        if path:
            tag = base.get("type") or base.get("role")
            path += f"<{tag if isinstance(tag, str) else declared.__name__}>"
            yield SdkField(path, base, None)
        if declared in outer:
            return
        for name, annotation in self._list_fields(declared).items():
            rest = {key: value for key, value in base.items() if key != name}
            is_required = name in self._required[declared]
            place = f"{path}.{name}" if path else name
            for field in self._generate(annotation, place, name, outer | {declared}):
                own = None if is_required else rest
                inner = own if field.rest is None else {**rest, name: field.rest}
                yield SdkField(field.path, {**rest, name: field.body}, inner)

    def _list_fields(self, declared: Any) -> dict[str, Any]:
        """Return the declared types of an object's fields, and note those that are
        required.
        """
        if declared not in self._hints:
            hints = typing.get_type_hints(declared, include_extras=True)
            self._hints[declared] = hints
            # Before its annotations are evaluated, a class does not know that a field
            # is required.
            self._required[declared] = frozenset(
                name
                for name, hint in hints.items()
                if name in declared.__required_keys__ or get_origin(hint) is typing.Required
            )
        return self._hints[declared]


def _unwrap(annotation: Any) -> Any:
    """Return the type itself, without its qualifiers and metadata."""
    while True:
        if get_origin(annotation) in _WRAPPERS:
            annotation = get_args(annotation)[0]
        elif (supertype := getattr(annotation, "__supertype__", None)) is not None:
            annotation = supertype
        elif isinstance(annotation, typing_extensions.TypeAliasType):
            annotation = annotation.__value__
        else:
            return annotation
