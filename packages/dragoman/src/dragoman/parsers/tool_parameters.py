"""The parameters that a tool declares.

They are used by syntaxes that write arguments by name instead of as one JSON object.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..core.errors import Unsupported
from ..core.json_types import JsonObject
from ..core.message import CustomTool, Tool
from .json_codec import decode, encode
from .schema_alternatives import Schema, expand_alternatives
from .schema_types import find_schema_types, resolve

MAX_ARGUMENTS = 128
"""Maximum declared arguments of a tool whose calls are enforced."""
MAX_COPIED_CHARS = 512 * 1024
"""Maximum total characters of copied definitions (`$defs`), of which each alternative
of an argument needs a copy.
"""


def check_size(schemas: Sequence[Schema], defs: Schema) -> None:
    """Raise Unsupported if there are too many arguments, or the copies of the
    definitions would be too large.
    """
    if len(schemas) > MAX_ARGUMENTS:
        raise Unsupported(
            f"More than {MAX_ARGUMENTS} arguments cannot be enforced in this model's tool call "
            f"format."
        )
    expanded = (
        alternative for schema in schemas for alternative in expand_alternatives(schema).schemas
    )
    copies = sum("const" not in alternative for alternative in expanded)
    if copies * len(encode(defs)) > MAX_COPIED_CHARS:
        raise Unsupported(
            "The tool definitions are too large to be enforced in this model's tool call format."
        )


_DEFINITIONS = ("$defs", "definitions")
_COMBINING_KEYWORDS = (
    *(
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ),
    *(
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "enum",
        "const",
    ),
)
"""Keywords of an object schema that a list of parameters cannot express."""
_NO_ARGUMENTS = '{"type":"object","properties":{},"additionalProperties":false}'


class Parameter(Struct, frozen=True):
    """One parameter of a tool.

    schema: the parameter's schema, self-contained, with its definitions.
    """

    name: str
    schema: Schema
    required: bool


class ToolParameters(Struct, frozen=True):
    """The parameters of a tool.

    properties: the declared parameters, in the schema's order.
    allows_additional: undeclared parameters are allowed.
    unenforced: keywords about undeclared parameters that are not enforced.
    root: the tool's whole schema, to which references are relative.
    """

    properties: tuple[Parameter, ...]
    allows_additional: bool
    unenforced: tuple[str, ...] = ()
    root: Schema = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self.properties)

    def find_types(self, name: str) -> tuple[str, ...]:
        """Return the JSON types that a parameter allows; () means any."""
        # Only on demand: following the references of all parameters would take seconds
        # for a hostile schema.
        schema = next(
            (parameter.schema for parameter in self.properties if parameter.name == name), None
        )
        return () if schema is None else find_schema_types(schema, self.root)


def build_arguments_schema(tool: Tool) -> str:
    """Return the JSON Schema of the arguments. A function without a schema takes none,
    as in OpenAI's API.
    """
    if isinstance(tool, CustomTool):
        # A custom tool takes its text under `input`. A pattern applies to all of it;
        # JSON Schema cannot express a grammar.
        input_schema: JsonObject = {"type": "string"}
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
    # A set, since a schema of a megabyte has tens of thousands of names.
    required_names = (
        {name for name in required if isinstance(name, str)}
        if isinstance(required, list)
        else set[str]()
    )
    defs = {key: root[key] for key in _DEFINITIONS if key in root}
    parameters: list[Parameter] = []
    for name, schema in declared.items():
        # A boolean is a schema too: `false` allows no value, `true` any (JSON Schema
        # 2020-12, section 4.3.2).
        property_schema: Schema = {"not": {}} if schema is False else {}
        if isinstance(schema, dict):
            property_schema = schema
        parameters.append(Parameter(name, {**defs, **property_schema}, name in required_names))
    # JSON Schema allows other properties by default, but models treat a list of
    # parameters as complete, as this does.
    additional = root.get("additionalProperties", "properties" not in root)
    allows_additional = additional is not False and not declared
    return ToolParameters(
        tuple(parameters),
        allows_additional,
        ("additionalProperties",)
        if allows_additional and isinstance(additional, dict) and additional
        else (),
        root,
    )


def read_enforceable_parameters(tool: Tool) -> ToolParameters:
    """Read the parameters of a tool whose calls are to be enforced.

    Raises Unsupported if the schema has constraints that parameters by name cannot
    express.
    """
    root = _load_schema(tool)
    keyword = next((candidate for candidate in _COMBINING_KEYWORDS if candidate in root), None)
    if keyword is not None:
        raise Unsupported(
            f"{keyword!r} over all arguments cannot be enforced in this model's tool call format."
        )
    tool_parameters = read_parameters(tool)
    check_size(
        [parameter.schema for parameter in tool_parameters.properties],
        {key: root[key] for key in _DEFINITIONS if key in root},
    )
    declared = tool_parameters.names
    required = root.get("required")
    missing = (
        next((name for name in required if name not in declared), None)
        if isinstance(required, list)
        else None
    )
    if missing is not None:
        raise Unsupported(f"{missing!r} is required, and not among the properties.")
    return tool_parameters


def _load_schema(tool: Tool) -> JsonObject:
    schema = build_arguments_schema(tool)
    try:
        root = decode(schema)
    except ValueError:
        return {}
    if isinstance(root, dict) and isinstance(reference := root.get("$ref"), str):
        target = resolve(reference, root)
        root = {**root, **target} if isinstance(target, dict) else root
    return root if isinstance(root, dict) else {}
