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
_CONTAINERS = (dict, list)


class NestedRules(Struct, frozen=True):
    """Exceptions, by struct.

    accepted: fields that have no effect by definition, such as those of a replayed answer.
    checked_types: values of `type`; an object with another one is left out, or has fields that are read elsewhere.
    """

    accepted: Mapping[StructType, frozenset[str]] = {}
    checked_types: Mapping[StructType, frozenset[str | None]] = {}


class _Node:
    """What may be in one place.

    fields: the names of an object's fields; None for any.
    inner: those of them in which something is checked.
    items: of an array there.
    """

    def __init__(self) -> None:
        self.fields: frozenset[str] | None = None
        self.inner: dict[str, _Node] = {}
        self.checked_types: frozenset[str | None] | None = None
        self.items: _Node | None = None


class NestedFields:
    """The nested fields of a body's struct."""

    def __init__(self, body: StructType, rules: NestedRules) -> None:
        self._rules = rules
        self._nodes: dict[StructType, _Node] = {}
        self._nested = self._build_object(msgspec.inspect.type_info(body)).inner

    def find_unknown(self, fields: Mapping[str, Raw]) -> list[str]:
        """The paths of unknown fields that are not null, each once however many objects have it."""
        if self._nested.keys().isdisjoint(fields):
            return []
        found: dict[str, str] = {}
        for name, node in self._nested.items():
            raw = fields.get(name)
            if raw is not None and bytes(memoryview(raw)[:1]) in (b"{", b"["):
                try:
                    value: Json = msgspec.json.decode(raw)
                except (msgspec.MsgspecError, ValueError):
                    continue  # Decoding the struct rejects it, with a better error.
                if _is_known(value, node):
                    continue
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
                        node.fields, node.inner, node.checked_types = part.fields, part.inner, part.checked_types
                    node.items = part.items or node.items
                return node
            case _:
                return None

    def _build_object(self, info: msgspec.inspect.Type) -> _Node:
        assert isinstance(info, msgspec.inspect.StructType)
        known = self._nodes.get(info.cls)
        if known is None:
            known = self._nodes[info.cls] = _Node()
            names = frozenset(field.encode_name for field in info.fields)
            known.fields = names | self._rules.accepted.get(info.cls, frozenset())
            known.checked_types = self._rules.checked_types.get(info.cls)
            for field in info.fields:
                if (inner := self._build(field.type)) is not None:
                    known.inner[field.encode_name] = inner
        return known


def _is_known(value: Json, node: _Node) -> bool:
    """Whether a value has known fields only: the usual case, at a fraction of the cost of `_walk`."""
    if isinstance(value, list):
        items, values = node.items, cast("list[Json]", value)
        return items is None or all(
            [_is_known(cast("Json", item), items) for item in values if isinstance(item, _CONTAINERS)]
        )
    members, fields = cast("dict[str, Json]", value), node.fields
    # Of types that this server does not interpret nothing is known, so none of their fields is unknown.
    if fields is None or (node.checked_types is not None and members.get("type") not in node.checked_types):
        return True
    if not members.keys() <= fields:
        return False
    for name, inner in node.inner.items():
        member = members.get(name)
        if isinstance(member, _CONTAINERS) and not _is_known(cast("Json", member), inner):
            return False
    return True


def _walk(value: Json, node: _Node, path: str, key: str) -> Iterator[tuple[str, str]]:
    """Yield (path, path without indices) of the unknown fields in a value."""
    if isinstance(value, list) and node.items is not None:
        for i, item in enumerate(cast("list[Json]", value)):
            if isinstance(item, _CONTAINERS):
                yield from _walk(cast("Json", item), node.items, f"{path}[{i}]", key)
    elif isinstance(value, dict) and node.fields is not None:
        members = cast("dict[str, Json]", value)
        if node.checked_types is not None and members.get("type") not in node.checked_types:
            return
        for name, member in members.items():
            if name not in node.fields:
                if member is not None:
                    yield f"{path}.{name}", f"{key}.{name}"
            elif name in node.inner and isinstance(member, _CONTAINERS):
                yield from _walk(cast("Json", member), node.inner[name], f"{path}.{name}", f"{key}.{name}")
