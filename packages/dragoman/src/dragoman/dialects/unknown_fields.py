"""Finds nested fields of a body that have no meaning: none is ignored silently.

Those are the fields that the body's structs do not define, and those of another role or
type: one struct holds the messages of all roles, or the parts of all types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import msgspec
from msgspec import Raw, Struct

from .field_errors import check_one_of

MAX_UNKNOWN = 32


MAX_PATH = 128
"""Limits on reported unknown fields: their number, and the characters of each path."""


StructType = type[Struct]


DecodedJson = object


_CONTAINERS = (dict, list)


_EMPTY: tuple[DecodedJson, ...] = (None, "", False, [], {})
"""Values of a field of another role that say nothing; clients send all fields of their
own structs.
"""


class TaggedFields(Struct, frozen=True):
    """The fields of a struct that have a meaning, by its role or type.

    tag: the field that selects them.
    fields: names by value of the tag, without the tag itself; None is its absence. All
        fields of other values are known.
    """

    tag: str
    fields: Mapping[str | None, frozenset[str]]


class NestedRules(Struct, frozen=True):
    """The rules for each struct when a body is searched for unknown fields.

    accepted: further fields that are accepted without effect, such as those of a
        replayed answer.
    checked_types: the values of `type` for which an object is checked; objects of other
    types are ignored by the reader, or parsed elsewhere.
    tagged: the fields by role or type, of structs that have several.
    values: the allowed values of fields that only the vendor uses, by their name.
    """

    accepted: Mapping[StructType, frozenset[str]] = {}
    checked_types: Mapping[StructType, frozenset[str | None]] = {}
    tagged: Mapping[StructType, TaggedFields] = {}
    values: Mapping[StructType, Mapping[str, tuple[str, ...]]] = {}


class _Node:
    """The known fields at one place of a body.

    fields: names of an object's fields; None accepts any.
    inner: nodes of the fields whose values are checked too.
    checked_types: as in NestedRules; None checks all objects.
    tag, tagged_fields: the tag of TaggedFields, and all known fields by its values.
    values: as in NestedRules.
    items: node of an array's items, or of the values of an object whose names are the
        client's; None if they are not checked.
    """

    def __init__(self) -> None:
        self.fields: frozenset[str] | None = None
        self.inner: dict[str, _Node] = {}
        self.checked_types: frozenset[str | None] | None = None
        self.tag = ""
        self.tagged_fields: dict[str | None, frozenset[str]] = {}
        self.values: Mapping[str, tuple[str, ...]] = {}
        self.items: _Node | None = None

    def adopt_object(self, other: _Node) -> None:
        """Take over what another node knows of objects."""
        self.fields = other.fields
        self.inner = other.inner
        self.checked_types = other.checked_types
        self.tag = other.tag
        self.tagged_fields = other.tagged_fields
        self.values = other.values

    def select_fields(self, members: Mapping[str, DecodedJson]) -> frozenset[str] | None:
        """Return the known fields of an object; None accepts any."""
        if not self.tag:
            return self.fields
        tag = members.get(self.tag)
        if tag is not None and not isinstance(tag, str):
            return self.fields
        fields = self.tagged_fields.get(tag)
        if fields is None and tag is not None:
            # Ollama's roles are in any case.
            fields = self.tagged_fields.get(tag.lower())
        return self.fields if fields is None else fields

    def has_known_values(self, members: Mapping[str, DecodedJson]) -> bool:
        return all([members.get(name) in (None, *allowed) for name, allowed in self.values.items()])


class NestedFields:
    """Finds the unknown fields below the top level of a body."""

    def __init__(self, body: StructType, rules: NestedRules) -> None:
        self._rules = rules
        self._nodes: dict[StructType, _Node] = {}
        self._nested = self._build_object(msgspec.inspect.type_info(body)).inner

    def find_unknown(self, fields: Mapping[str, Raw]) -> list[str]:
        """Return the paths of unknown fields that are not null. A field of several
        array items is reported once.

        Raises:
            RequestError: a value is not among those that the rules allow.
        """
        # Fast path: bodies without such fields are not decoded a second time.
        if self._nested.keys().isdisjoint(fields):
            return []
        paths: dict[str, str] = {}
        for name, node in self._nested.items():
            raw = fields.get(name)
            if raw is not None:
                try:
                    value: DecodedJson = msgspec.json.decode(raw)
                except (msgspec.MsgspecError, ValueError):
                    continue  # Decoding into the struct rejects it with a better error.
                if type(value) not in _CONTAINERS or _is_known(value, node):
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
            case (
                msgspec.inspect.ListType(item_type=item) | msgspec.inspect.DictType(value_type=item)
            ):
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
                        node.adopt_object(part)
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
            accepted = self._rules.accepted.get(info.cls, frozenset[str]())
            node.fields = names | accepted
            node.checked_types = self._rules.checked_types.get(info.cls)
            node.values = self._rules.values.get(info.cls, {})
            if (tagged := self._rules.tagged.get(info.cls)) is not None:
                node.tag = tagged.tag
                node.tagged_fields = {
                    value: known | accepted | {tagged.tag} for value, known in tagged.fields.items()
                }
            for field in info.fields:
                if (inner := self._build(field.type)) is not None:
                    node.inner[field.encode_name] = inner
        return node


def _is_known(value: DecodedJson, node: _Node) -> bool:
    """Whether a value has only known fields. This is the usual case, checked at a
    fraction of the cost of `_walk`.
    """
    if node.fields is not None and isinstance(value, dict):
        return _are_known((cast("DecodedJson", value),), node)
    if node.items is None:
        return True
    children = (
        cast("list[DecodedJson]", value)
        if isinstance(value, list)
        else cast("dict[str, DecodedJson]", value).values()
    )
    return _are_known(children, node.items)


def _are_known(values: Iterable[DecodedJson], node: _Node) -> bool:
    """Whether the items of an array have only known fields: nearly always the messages,
    so that one call checks all of them.
    """
    fields = node.fields
    for value in values:
        if fields is None or not isinstance(value, dict):
            if isinstance(value, _CONTAINERS) and not _is_known(cast("DecodedJson", value), node):
                return False
            continue
        members = cast("dict[str, DecodedJson]", value)
        # Objects of types that this server does not interpret are not checked.
        if node.checked_types is not None and members.get("type") not in node.checked_types:
            continue
        known = node.select_fields(members) or fields
        if not members.keys() <= known or (node.values and not node.has_known_values(members)):
            return False
        for name, member in members.items():
            # Most values are texts.
            if type(member) is not str and isinstance(member, _CONTAINERS):
                inner = node.inner.get(name)
                if inner is not None and not _is_known(cast("DecodedJson", member), inner):
                    return False
    return True


def _walk(value: DecodedJson, node: _Node, path: str, key: str) -> Iterator[tuple[str, str]]:
    """Yield the path, and the path without indices, of each unknown field in a value."""
    if isinstance(value, list) or node.fields is None:
        if node.items is not None:
            for suffix, item in _list_containers(cast("DecodedJson", value)):
                # The index of an array's item is not part of the key.
                yield from _walk(item, node.items, path + suffix, key)
        return
    members = cast("dict[str, DecodedJson]", value)
    if node.checked_types is not None and members.get("type") not in node.checked_types:
        return
    for name, allowed in node.values.items():
        if isinstance(value := members.get(name), str):
            check_one_of(value, allowed, f"{path}.{name}")
    fields = node.select_fields(members) or node.fields
    for name, member in members.items():
        if name not in fields:
            if member is not None and (name not in node.fields or member not in _EMPTY):
                yield f"{path}.{name}", f"{key}.{name}"
        elif name in node.inner and isinstance(member, _CONTAINERS):
            yield from _walk(
                cast("DecodedJson", member), node.inner[name], f"{path}.{name}", f"{key}.{name}"
            )


def _list_containers(value: DecodedJson) -> list[tuple[str, DecodedJson]]:
    """List the end of the path and the value of each item of an array, or each field of
    an object, that is an array or an object itself.
    """
    entries = (
        [(f"[{i}]", item) for i, item in enumerate(cast("list[DecodedJson]", value))]
        if isinstance(value, list)
        else [(f".{name}", item) for name, item in cast("dict[str, DecodedJson]", value).items()]
    )
    return [
        (suffix, cast("DecodedJson", item))
        for suffix, item in entries
        if isinstance(item, _CONTAINERS)
    ]
