"""The JSON Schemas of the OpenAPI document, built from the structs of the bodies.

The parameter tables add the fields that readers accept without an effect or reject, so
no field is listed by hand. msgspec's own schema generator cannot be used: it does not
support `Raw` defaults, which request structs have.
"""

from __future__ import annotations

import inspect as docs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import NODEFAULT, Struct, inspect

from ....dialects.json_body import JsonBody
from ....dialects.parameter_table import SupportStatus

OpenApiObject = dict[str, Any]


REF = "#/components/schemas/"
# A line of a docstring that describes one or more fields: `name: text`, or `name,
# other: text`.
_FIELD_TEXT = re.compile(r"((?:[a-z_]\w*, )*[a-z_]\w*): (.*)")
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_SUPPORT = {
    SupportStatus.ACCEPTED: "Accepted without effect",
    SupportStatus.WARNED: "Ignored with a warning",
    SupportStatus.REFUSED: "Refused, except for the values that ask for the default",
}


class Schemas:
    """The schemas of an OpenAPI document.

    components: the schemas by name; each is referred to from somewhere.
    bodies: the JSON objects of requests.
    requests: other types in requests.
    answers: the types in responses.
    """

    def __init__(
        self, bodies: Iterable[JsonBody], requests: Sequence[object], answers: Sequence[object]
    ) -> None:
        all_bodies = {body.name: body for body in _with_nested(bodies)}
        parts = [struct for body in all_bodies.values() for struct in body.structs]
        types = list({repr(type): type for type in (*parts, *requests, *answers)}.values())
        infos = inspect.multi_type_info(types)
        self._by_type = {repr(type): _build(info) for type, info in zip(types, infos, strict=True)}
        sent_structs = _find_structs(inspect.multi_type_info([*parts, *requests]))
        self.components: dict[str, OpenApiObject] = {
            name: _build_struct(struct, is_sent=name in sent_structs)
            for name, struct in _find_structs(infos).items()
        }
        for name, body in all_bodies.items():
            self.components[name] = self._merge(body)
        # Remove the components that nothing refers to: structs that were merged into a
        # body.
        roots = [
            *(REF + name for name in all_bodies),
            *map(str, map(self.refer, [*requests, *answers])),
        ]
        used: set[str] = set()
        pending = [name for root in roots for name in _find_references(root)]
        while pending:
            name = pending.pop()
            if name not in used:
                used.add(name)
                pending += _find_references(repr(self.components[name]))
        self.components = {name: self.components[name] for name in sorted(used)}

    def refer(self, type: object) -> OpenApiObject:
        """Return the schema of a type; for a struct it is a reference to its component."""
        return self._by_type[repr(type)]

    def _merge(self, body: JsonBody) -> OpenApiObject:
        """Build the schema of a body: the fields of its structs, then those that are
        only in the table.
        """
        parts = [self.components[struct.__name__] for struct in body.structs]
        properties = {
            name: dict(schema) for part in parts for name, schema in part["properties"].items()
        }
        for row in () if body.table is None else body.table.rows:
            schema = properties.get(row.name, {})
            if row.status is SupportStatus.HONOURED:
                described = (
                    {"description": f"{row.note}."}
                    if row.note and "description" not in schema
                    else {}
                )
                properties[row.name] = {**schema, **described}
                continue
            # A parameter without an effect is described by the table alone.
            described = {
                "description": f"{_SUPPORT[row.status]}: {row.note}.",
                "x-dragoman-support": row.status.value,
            }
            if row.status is SupportStatus.REFUSED:
                described = {
                    **build_any_of([{"type": "null"}, *map(_build_constant, row.harmless)]),
                    **described,
                }
            properties[row.name] = described
        for name, inner in (body.nested or {}).items():
            field_text = (
                {"description": text} if (text := properties[name].get("description")) else {}
            )
            properties[name] = {
                "anyOf": [{"$ref": REF + inner.name}, {"type": "null"}],
                **field_text,
            }
        required = [name for part in parts for name in part.get("required", ())]
        merged: OpenApiObject = {"title": body.name, "type": "object"}
        if len(parts) == 1 and "description" in parts[0]:
            merged["description"] = parts[0]["description"]
        merged["properties"] = {name: properties[name] for name in (*required, *properties)}
        if required:
            merged["required"] = required
        if body.example is not None:
            merged["examples"] = [body.example]
        return merged


def _with_nested(bodies: Iterable[JsonBody]) -> Iterator[JsonBody]:
    for body in bodies:
        yield body
        yield from _with_nested((body.nested or {}).values())


def _find_references(text: str) -> list[str]:
    return re.findall(re.escape(REF) + r"(\w+)", text)


def _find_structs(infos: Iterable[inspect.Type]) -> Mapping[str, inspect.StructType]:
    """Return all structs in the types, by name.

    Raises:
        ValueError: two structs have the same name, which must be unique in a document.
    """
    structs: dict[str, inspect.StructType] = {}
    pending = list(infos)
    while pending:
        match pending.pop():
            case inspect.StructType(cls=struct) as info:
                namesake = structs.get(struct.__name__)
                if namesake is None:
                    structs[struct.__name__] = info
                    pending += [field.type for field in info.fields]
                # Names are the keys of `components`: two structs with the same name
                # would overwrite each other.
                elif namesake.cls is not struct:
                    raise ValueError(f"{struct} and {namesake.cls} have the same name")
            case inspect.Metadata(type=inner):
                pending.append(inner)
            case inspect.CollectionType(item_type=item):
                pending.append(item)
            case inspect.DictType(key_type=key, value_type=value):
                pending += [key, value]
            case inspect.UnionType(types=several) | inspect.TupleType(item_types=several):
                pending += several
            case _:
                """A type without structs."""
    return structs


def _build(info: inspect.Type) -> OpenApiObject:  # noqa: C901, PLR0911, PLR0912 - a table
    match info:
        case inspect.Metadata(type=inner):
            return _build(inner)
        case inspect.StructType(cls=struct):
            return {"$ref": REF + struct.__name__}
        case inspect.NoneType():
            return {"type": "null"}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType() | inspect.FloatType():
            bounds = {
                name: bound
                for key, name in _BOUNDS.items()
                if (bound := getattr(info, key)) is not None
            }
            return {"type": "integer" if isinstance(info, inspect.IntType) else "number", **bounds}
        case inspect.StrType():
            # JSON Schema uses ECMAScript's regular expressions, which have no \Z.
            pattern = None if info.pattern is None else info.pattern.replace(r"\Z", "$")
            limits = {
                "minLength": info.min_length,
                "maxLength": info.max_length,
                "pattern": pattern,
            }
            return {
                "type": "string",
                **{name: limit for name, limit in limits.items() if limit is not None},
            }
        case inspect.LiteralType(values=values):
            options = list[object](values)
            return {"enum": options} if len(options) > 1 else {"const": options[0]}
        case inspect.EnumType(cls=enum):
            return {"enum": [member.value for member in enum]}
        case inspect.CollectionType(item_type=item):
            limits = {"minItems": info.min_length, "maxItems": info.max_length}
            items = {name: limit for name, limit in limits.items() if limit is not None}
            return {"type": "array", "items": _build(item), **items}
        case inspect.TupleType(item_types=items):
            return {
                "type": "array",
                "prefixItems": [*map(_build, items)],
                "minItems": len(items),
                "maxItems": len(items),
            }
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _build(value)}
        case inspect.UnionType(types=several):
            union: OpenApiObject = {"anyOf": [_build(alternative) for alternative in several]}
            structs = [
                alternative
                for alternative in several
                if isinstance(alternative, inspect.StructType)
            ]
            if len(structs) == len(several):
                mapping = {str(struct.tag): REF + struct.cls.__name__ for struct in structs}
                union["discriminator"] = {"propertyName": structs[0].tag_field, "mapping": mapping}
            return union
        case _:
            return {}


def _build_struct(info: inspect.StructType, *, is_sent: bool) -> OpenApiObject:
    """Build the schema of a struct.

    is_sent: clients send it, so fields with a default are optional. The server always
        writes them, except with `omit_defaults` or a value of `UNSET`.
    """
    properties: dict[str, OpenApiObject] = (
        {} if info.tag_field is None else {info.tag_field: {"const": info.tag}}
    )
    required = list(properties)
    writes_defaults = not is_sent and not info.cls.__struct_config__.omit_defaults
    # The encoder leaves out fields that are UNSET, so they are never required.
    unset = {
        field.encode_name
        for field in msgspec.structs.fields(info.cls)
        if "UnsetType" in repr(field.type)
    }
    for field in info.fields:
        properties[field.encode_name] = _build(field.type)
        has_default = field.default is not NODEFAULT or field.default_factory is not NODEFAULT
        if field.encode_name not in unset and (writes_defaults or not has_default):
            required.append(field.encode_name)
        if is_sent and isinstance(field.default, str | int | float):
            properties[field.encode_name]["default"] = field.default
    schema: OpenApiObject = {
        "title": info.cls.__name__,
        "type": "object",
        **_describe(info.cls, properties),
    }
    schema["properties"] = properties
    if required:
        schema["required"] = required
    if info.forbid_unknown_fields:
        schema["additionalProperties"] = False
    return schema


def _describe(struct: type[Struct], properties: dict[str, OpenApiObject]) -> OpenApiObject:
    """Return the description of a struct. Move lines `name: text` of its docstring to
    the schemas of these fields.
    """
    text: list[str] = []
    field_texts: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in docs.cleandoc(struct.__doc__ or "").splitlines():
        match = _FIELD_TEXT.fullmatch(line)
        names = match[1].split(", ") if match is not None else []
        if match is not None and all(name in properties for name in names):
            current = [match[2]]
            field_texts |= dict.fromkeys(names, current)
        elif current is not None and line:
            current.append(line)
        else:
            current = None
            text.append(line)
    for name, lines in field_texts.items():
        properties[name]["description"] = " ".join(lines)
    return {"description": "\n".join(text).strip()} if any(text) else {}


def _build_constant(value: object) -> OpenApiObject:
    """Build the schema of one value. Objects and lists get no `const`: client
    generators expect a scalar in it.
    """
    match value:
        case dict():
            fields = {
                str(name): _build_constant(inner)
                for name, inner in cast("dict[str, object]", value).items()
            }
            return {
                "type": "object",
                "properties": fields,
                "required": [*fields],
                "maxProperties": len(fields),
            }
        case list():
            items = [_build_constant(inner) for inner in cast("list[object]", value)]
            first: OpenApiObject = {"prefixItems": items} if items else {}
            return {
                "type": "array",
                "items": {},
                **first,
                "minItems": len(items),
                "maxItems": len(items),
            }
        case _:
            return {"const": value}


def build_any_of(alternatives: list[OpenApiObject]) -> OpenApiObject:
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
