"""Finds the fields below the top level of a body that its structs do not define, so that none is ignored silently.

The structs themselves are the source: whatever field of an object is in no struct has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import msgspec
from msgspec import Raw, Struct

MAX_UNKNOWN, MAX_PATH = 32, 128
"""Limits on reported fields: their number, and the characters of a path."""

StructType = type[Struct]
Json = object


class NestedRules(Struct, frozen=True):
    """Exceptions, by struct.

    accepted: fields that have no effect by definition, such as those of a replayed answer.
    checked_types: values of `type`; an object with another one is left out, or has fields that are read elsewhere.
    """

    accepted: Mapping[StructType, frozenset[str]] = {}
    checked_types: Mapping[StructType, frozenset[str | None]] = {}


class _Node:
    """What may be in one place. fields: of an object there, by name; None for any. items: of an array there."""

    def __init__(self) -> None:
        self.fields: dict[str, _Node | None] | None = None
        self.accepted: frozenset[str] = frozenset()
        self.checked_types: frozenset[str | None] | None = None
        self.items: _Node | None = None


class NestedFields:
    """The nested fields of a body's struct."""

    def __init__(self, body: StructType, rules: NestedRules) -> None:
        self._rules = rules
        self._nodes: dict[StructType, _Node] = {}
        root = self._build_object(msgspec.inspect.type_info(body))
        assert root is not None
        assert root.fields is not None
        self._nested = {name: node for name, node in root.fields.items() if node is not None}

    def find_unknown(self, fields: Mapping[str, Raw]) -> list[str]:
        """The paths of unknown fields that are not null, each once however many objects have it."""
        found: dict[str, str] = {}
        for name, node in self._nested.items():
            raw = fields.get(name)
            if raw is not None and bytes(memoryview(raw)[:1]) in (b"{", b"["):
                try:
                    value: Json = msgspec.json.decode(raw)
                except (msgspec.MsgspecError, ValueError):
                    continue  # Decoding the struct rejects it, with a better error.
                for path, key in _walk(value, node, name, name):
                    found.setdefault(key, path[:MAX_PATH])
                    if len(found) == MAX_UNKNOWN:
                        break
        return list(found.values())[:MAX_UNKNOWN]

    def _build(self, info: msgspec.inspect.Type) -> _Node | None:
        """The node of a type; None if nothing in it is checked."""
        match info:
            case msgspec.inspect.StructType():
                return self._build_object(info)
            case msgspec.inspect.ListType(item_type=item):
                if (items := self._build(item)) is None:
                    return None
                node = _Node()
                node.items = items
                return node
            case msgspec.inspect.UnionType(types=types):
                parts = [part for part in map(self._build, types) if part is not None]
                if len(parts) < 2:
                    return parts[0] if parts else None
                node = _Node()
                for part in parts:
                    if part.fields is not None:
                        node.fields, node.accepted, node.checked_types = part.fields, part.accepted, part.checked_types
                    node.items = part.items or node.items
                return node
            case _:
                return None

    def _build_object(self, info: msgspec.inspect.Type) -> _Node | None:
        assert isinstance(info, msgspec.inspect.StructType)
        known = self._nodes.get(info.cls)
        if known is None:
            known = self._nodes[info.cls] = _Node()
            known.fields = {}
            known.accepted = self._rules.accepted.get(info.cls, frozenset())
            known.checked_types = self._rules.checked_types.get(info.cls)
            known.fields |= {field.encode_name: self._build(field.type) for field in info.fields}
        return known


def _walk(value: Json, node: _Node, path: str, key: str) -> Iterator[tuple[str, str]]:
    """Yield (path, path without indices) of the unknown fields in a value."""
    if isinstance(value, list) and node.items is not None:
        for i, item in enumerate(cast("list[Json]", value)):
            if isinstance(item, dict | list):
                yield from _walk(cast("Json", item), node.items, f"{path}[{i}]", key)
    elif isinstance(value, dict) and node.fields is not None:
        members = cast("dict[str, Json]", value)
        if node.checked_types is not None and members.get("type") not in node.checked_types:
            return
        for name, member in members.items():
            if name not in node.fields:
                if member is not None and name not in node.accepted:
                    yield f"{path}.{name}", f"{key}.{name}"
            elif (inner := node.fields[name]) is not None and isinstance(member, dict | list):
                yield from _walk(cast("Json", member), inner, f"{path}.{name}", f"{key}.{name}")
