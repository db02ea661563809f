"""Finds nested fields of a body that its structs do not define: none is ignored
silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import msgspec
from msgspec import Raw, Struct

MAX_UNKNOWN = 32


MAX_PATH = 128
"""Limits on reported unknown fields: their number, and the characters of each path."""


StructType = type[Struct]


DecodedJson = object


_CONTAINERS = (dict, list)


class NestedRules(Struct, frozen=True):
    """The exceptions for each struct when a body is searched for unknown fields.

    accepted: further fields that are accepted without effect, such as those of a
        replayed answer.
    checked_types: the values of `type` for which an object is checked; objects of other
    types are ignored by the reader, or parsed elsewhere.
    """

    accepted: Mapping[StructType, frozenset[str]] = {}
    checked_types: Mapping[StructType, frozenset[str | None]] = {}


class _Node:
    """The known fields at one place of a body.

    fields: names of an object's fields; None accepts any.
    inner: nodes of the fields whose values are checked too.
    checked_types: as in NestedRules; None checks all objects.
    items: node of an array's items; None if they are not checked.
    """

    def __init__(self) -> None:
        self.fields: frozenset[str] | None = None
        self.inner: dict[str, _Node] = {}
        self.checked_types: frozenset[str | None] | None = None
        self.items: _Node | None = None


class NestedFields:
    """Finds the unknown fields below the top level of a body."""

    def __init__(self, body: StructType, rules: NestedRules) -> None:
        self._rules = rules
        self._nodes: dict[StructType, _Node] = {}
        self._nested = self._build_object(msgspec.inspect.type_info(body)).inner

    def find_unknown(self, fields: Mapping[str, Raw]) -> list[str]:
        """Return the paths of unknown fields that are not null. A field of several
        array items is reported once.
        """
        # Fast path: bodies without such fields are not decoded a second time.
        if self._nested.keys().isdisjoint(fields):
            return []
        paths: dict[str, str] = {}
        for name, node in self._nested.items():
            raw = fields.get(name)
            if raw is not None and bytes(memoryview(raw)[:1]) in (b"{", b"["):
                try:
                    value: DecodedJson = msgspec.json.decode(raw)
                except (msgspec.MsgspecError, ValueError):
                    continue  # Decoding into the struct rejects it with a better error.
                if _is_known(value, node):
                    continue
                for path, key in _walk(value, node, name, name):
                    paths.setdefault(key, path[:MAX_PATH])
                    if len(paths) == MAX_UNKNOWN:
                        break
        return list(paths.values())[:MAX_UNKNOWN]

    def _build(self, info: msgspec.inspect.Type) -> _Node | None:
        """Build the node of a type; None if nothing in it is checked."""
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
                        node.fields = part.fields
                        node.inner = part.inner
                        node.checked_types = part.checked_types
                    node.items = part.items or node.items
                return node
            case _:
                return None

    def _build_object(self, info: msgspec.inspect.Type) -> _Node:
        assert isinstance(info, msgspec.inspect.StructType)
        node = self._nodes.get(info.cls)
        if node is None:
            # Stored before the fields' nodes are built, since a struct may contain
            # itself.
            node = self._nodes[info.cls] = _Node()
            names = frozenset(field.encode_name for field in info.fields)
            node.fields = names | self._rules.accepted.get(info.cls, frozenset())
            node.checked_types = self._rules.checked_types.get(info.cls)
            for field in info.fields:
                if (inner := self._build(field.type)) is not None:
                    node.inner[field.encode_name] = inner
        return node


def _is_known(value: DecodedJson, node: _Node) -> bool:
    """Whether a value has only known fields. This is the usual case, checked at a
    fraction of the cost of `_walk`.
    """
    if isinstance(value, list):
        items = node.items
        values = cast("list[DecodedJson]", value)
        return items is None or all(
            [
                _is_known(cast("DecodedJson", item), items)
                for item in values
                if isinstance(item, _CONTAINERS)
            ]
        )
    members = cast("dict[str, DecodedJson]", value)
    fields = node.fields
    # Objects of types that this server does not interpret are not checked.
    if fields is None or (
        node.checked_types is not None and members.get("type") not in node.checked_types
    ):
        return True
    if not members.keys() <= fields:
        return False
    for name, inner in node.inner.items():
        member = members.get(name)
        if isinstance(member, _CONTAINERS) and not _is_known(cast("DecodedJson", member), inner):
            return False
    return True


def _walk(value: DecodedJson, node: _Node, path: str, key: str) -> Iterator[tuple[str, str]]:
    """Yield the path, and the path without indices, of each unknown field in a value."""
    if isinstance(value, list) and node.items is not None:
        for i, item in enumerate(cast("list[DecodedJson]", value)):
            if isinstance(item, _CONTAINERS):
                yield from _walk(cast("DecodedJson", item), node.items, f"{path}[{i}]", key)
    elif isinstance(value, dict) and node.fields is not None:
        members = cast("dict[str, DecodedJson]", value)
        if node.checked_types is not None and members.get("type") not in node.checked_types:
            return
        for name, member in members.items():
            if name not in node.fields:
                if member is not None:
                    yield f"{path}.{name}", f"{key}.{name}"
            elif name in node.inner and isinstance(member, _CONTAINERS):
                yield from _walk(
                    cast("DecodedJson", member), node.inner[name], f"{path}.{name}", f"{key}.{name}"
                )
