"""What a tool declares about its parameters, one by one: for syntaxes that write arguments by name and not as JSON."""

from __future__ import annotations

from msgspec import Struct

from ..core.errors import Unsupported
from ..core.message import CustomTool, Tool
from .forms import check_size
from .values import Json, decode, encode, resolve, schema_types

_DEFINITIONS = ("$defs", "definitions")
_COMBINED = (
    *("allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "propertyNames", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "enum", "const"),
)
"""What a schema may say of an object that is more than a list of its parameters."""


class Parameter(Struct, frozen=True):
    """types: JSON types that it may have, () for any. schema: complete in itself, with what it refers to."""

    name: str
    types: tuple[str, ...]
    schema: dict[str, Json]
    required: bool

    @property
    def json(self) -> str:
        return encode(self.schema)

    @property
    def is_text(self) -> bool:
        """Nothing but a string, so that what is written needs no looking at."""
        return self.types == ("string",)


class Parameters(Struct, frozen=True):
    """named: in the schema's order. open: there may be others."""

    named: tuple[Parameter, ...]
    open: bool

    def types(self, name: str) -> tuple[str, ...]:
        return next((one.types for one in self.named if one.name == name), ())


def schema_of(tool: Tool) -> str | None:
    """The JSON Schema of the arguments; None for any object."""
    return _one_string(tool) if isinstance(tool, CustomTool) else tool.parameters


def _one_string(tool: CustomTool) -> str:
    """A custom tool takes its text under `input`. A pattern holds for all of it; a grammar no schema can say."""
    text: dict[str, Json] = {"type": "string"}
    if tool.syntax == "regex" and tool.definition is not None:
        text["pattern"] = f"^(?:{tool.definition})$"
    return encode(
        {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}
    )


def parameters(tool: Tool) -> Parameters:
    """Lenient: of what is no schema nothing is known."""
    root = _root(tool)
    properties = root.get("properties")
    required = root.get("required")
    named = properties if isinstance(properties, dict) else {}
    needed = required if isinstance(required, list) else []
    defs = {key: root[key] for key in _DEFINITIONS if key in root}
    return Parameters(
        tuple(_parameter(name, schema, root, defs, name in needed) for name, schema in named.items()),
        root.get("additionalProperties") is not False and not named,
    )


def enforceable(tool: Tool) -> Parameters:
    """As `parameters`. Raises Unsupported where writing them by name leaves out what the schema says of the whole."""
    root = _root(tool)
    found = next((word for word in _COMBINED if word in root), None)
    if found is not None:
        raise Unsupported(f"{found!r} over all arguments cannot be enforced in this model's tool call format.")
    known = parameters(tool)
    check_size([one.schema for one in known.named], {key: root[key] for key in _DEFINITIONS if key in root})
    required = root.get("required")
    missing = (
        [name for name in required if name not in {one.name for one in known.named}]
        if isinstance(required, list)
        else []
    )
    if missing:
        raise Unsupported(f"{missing[0]!r} is required, and not among the properties.")
    return known


def _root(tool: Tool) -> dict[str, Json]:
    schema = schema_of(tool)
    try:
        found = None if schema is None else decode(schema)
    except ValueError:
        return {}
    if isinstance(found, dict) and isinstance(reference := found.get("$ref"), str):
        target = resolve(reference, found)
        found = {**found, **target} if isinstance(target, dict) else found
    return found if isinstance(found, dict) else {}


def _parameter(name: str, schema: Json, root: dict[str, Json], defs: dict[str, Json], required: bool) -> Parameter:
    own: dict[str, Json] = {"not": {}} if schema is False else {}
    if isinstance(schema, dict):
        own = schema
    return Parameter(name, schema_types(own, root), {**defs, **own}, required)
