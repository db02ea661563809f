"""The declared parameters of a tool, one by one, and their names: for syntaxes that write arguments by name and not as
JSON.
"""

from __future__ import annotations

import re

from msgspec import Struct

from ..core.errors import Unsupported
from ..core.message import CustomTool, Tool
from .enforced_arguments import check_size
from .json_values import Json, decode, encode, find_schema_types, resolve

FUNCTION_NAME = re.compile(r"[^\s<>(){}\[\]\"'=,]*")
ARGUMENT_NAME = re.compile(r"[^\s<>(){}\[\]\"'=,:]*")


def check_name(name: str, pattern: re.Pattern[str] = FUNCTION_NAME) -> str:
    """The name, if the parser can read it back. Raises Unsupported."""
    if pattern.fullmatch(name) and name:
        return name
    raise Unsupported(f"The name {name[:100]!r} cannot be represented in this model's tool call format.")


class NameReader:
    """Reads blanks, and then all characters that may belong to a name."""

    def __init__(self, pattern: re.Pattern[str] = FUNCTION_NAME) -> None:
        self._pattern = pattern
        self._parts: list[str] = []

    def read(self, text: str, pos: int) -> tuple[int, bool]:
        """The position after the characters read, and whether the name has ended."""
        if not self._parts:
            while pos < len(text) and text[pos].isspace():
                pos += 1
        match = self._pattern.match(text, pos)
        end = pos if match is None else match.end()
        if end > pos:
            self._parts.append(text[pos:end])
        return end, end < len(text)

    @property
    def name(self) -> str:
        return "".join(self._parts)


_DEFINITIONS = ("$defs", "definitions")
_COMBINING_KEYWORDS = (
    *("allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "propertyNames", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "enum", "const"),
)
"""Keywords of an object schema that a list of parameters cannot express."""
_NO_ARGUMENTS = '{"type":"object","properties":{},"additionalProperties":false}'


class Parameter(Struct, frozen=True):
    """A parameter.

    types: allowed JSON types, () for any.
    schema: self-contained, with its definitions.
    """

    name: str
    types: tuple[str, ...]
    schema: dict[str, Json]
    required: bool

    @property
    def schema_json(self) -> str:
        return encode(self.schema)

    @property
    def is_string(self) -> bool:
        """Only a string is allowed, so its text needs no conversion."""
        return self.types == ("string",)


class ToolParameters(Struct, frozen=True):
    """The parameters of a tool.

    properties: in the schema's order.
    allows_additional: other parameters are allowed.
    unenforced: keywords of the schema of other parameters.
    """

    properties: tuple[Parameter, ...]
    allows_additional: bool
    unenforced: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self.properties)

    def find_types(self, name: str) -> tuple[str, ...]:
        return next((parameter.types for parameter in self.properties if parameter.name == name), ())


def build_arguments_schema(tool: Tool) -> str:
    """The JSON Schema of the arguments. A function without one takes none, as in OpenAI's API."""
    if isinstance(tool, CustomTool):
        # A custom tool takes its text under `input`. A pattern applies to all of it; JSON Schema cannot express a
        # grammar.
        input_schema: dict[str, Json] = {"type": "string"}
        if tool.syntax == "regex" and tool.definition is not None:
            input_schema["pattern"] = f"^(?:{tool.definition})$"
        return encode(
            {
                "type": "object",
                "properties": {"input": input_schema},
                "required": ["input"],
                "additionalProperties": False,
            }
        )
    return _NO_ARGUMENTS if tool.parameters is None else tool.parameters


def read_parameters(tool: Tool) -> ToolParameters:
    """Read the parameters leniently: an invalid schema declares none."""
    root = _load_schema(tool)
    properties = root.get("properties")
    required = root.get("required")
    declared = properties if isinstance(properties, dict) else {}
    required_names = required if isinstance(required, list) else []
    defs = {key: root[key] for key in _DEFINITIONS if key in root}
    # JSON Schema allows other properties by default; models take a list of parameters as complete, and so do we.
    additional = root.get("additionalProperties", "properties" not in root)
    allows_additional = additional is not False and not declared
    return ToolParameters(
        tuple(_build_parameter(name, schema, root, defs, name in required_names) for name, schema in declared.items()),
        allows_additional,
        ("additionalProperties",) if allows_additional and isinstance(additional, dict) and additional else (),
    )


def read_enforceable_parameters(tool: Tool) -> ToolParameters:
    """As `read_parameters`. Raises Unsupported where the schema has constraints that parameters by name cannot
    express.
    """
    root = _load_schema(tool)
    keyword = next((candidate for candidate in _COMBINING_KEYWORDS if candidate in root), None)
    if keyword is not None:
        raise Unsupported(f"{keyword!r} over all arguments cannot be enforced in this model's tool call format.")
    tool_parameters = read_parameters(tool)
    check_size(
        [parameter.schema for parameter in tool_parameters.properties],
        {key: root[key] for key in _DEFINITIONS if key in root},
    )
    required = root.get("required")
    missing = (
        [name for name in required if name not in {parameter.name for parameter in tool_parameters.properties}]
        if isinstance(required, list)
        else []
    )
    if missing:
        raise Unsupported(f"{missing[0]!r} is required, and not among the properties.")
    return tool_parameters


def _load_schema(tool: Tool) -> dict[str, Json]:
    schema = build_arguments_schema(tool)
    try:
        root = decode(schema)
    except ValueError:
        return {}
    if isinstance(root, dict) and isinstance(reference := root.get("$ref"), str):
        target = resolve(reference, root)
        root = {**root, **target} if isinstance(target, dict) else root
    return root if isinstance(root, dict) else {}


def _build_parameter(
    name: str, schema: Json, root: dict[str, Json], defs: dict[str, Json], required: bool
) -> Parameter:
    # A boolean is a schema too: `false` allows no value, `true` any (JSON Schema 2020-12, section 4.3.2).
    property_schema: dict[str, Json] = {"not": {}} if schema is False else {}
    if isinstance(schema, dict):
        property_schema = schema
    return Parameter(name, find_schema_types(property_schema, root), {**defs, **property_schema}, required)
