"""The parameters that a tool declares, and grammar pieces for their values.

They are used by syntaxes that write arguments by name instead of as one JSON object.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from msgspec import Struct

from ..core.errors import Unsupported
from ..core.message import CustomTool, Tool
from ..core.syntax import Alternation, FreeText, OptionalPieces, RepeatedPieces, SyntaxPiece
from .json_text import Json, decode, encode, find_schema_types, resolve

# Values: expansion of their schemas, and the grammar pieces that enforce them.

Schema = dict[str, Json]

MAX_ARGUMENTS = 128
"""Maximum declared arguments of a tool whose calls are enforced."""
_MAX_ITEMS = 16
"""Maximum items of a list that is enforced in a family's own syntax."""
MAX_COPIED_CHARS = 512 * 1024
"""Maximum total characters of copied definitions (`$defs`), of which each alternative
of an argument needs a copy.
"""
_MAX_OPTIONS = 1024
"""Maximum options of all unions in one argument. Unions side by side multiply, so a few
kilobytes can have millions.
"""
_MAX_VALUES = 32 * 1024
"""Maximum values of `enum` in all alternatives of one argument."""
_LOWER_BOUNDS = frozenset(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"))
_UPPER_BOUNDS = frozenset(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"))
_ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$defs", "definitions", "discriminator", "$schema", "$id"),
    ]
)
_ASSERTIONS = frozenset(
    [
        *(
            "type",
            "format",
            "pattern",
            "minLength",
            "maxLength",
            "enum",
            "const",
            "allOf",
            "anyOf",
            "oneOf",
            "not",
            "if",
        ),
        *(
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "items",
            "minItems",
            "maxItems",
        ),
        *(
            "properties",
            "required",
            "additionalProperties",
            "$ref",
            "uniqueItems",
            "contains",
            "prefixItems",
        ),
    ]
)


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
            if key not in merged or merged[key] == value or key in _ANNOTATIONS:
                merged.setdefault(key, value)
            elif key == "type":
                # An integer is a number too.
                types: list[Json] = [
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
                key in _LOWER_BOUNDS | _UPPER_BOUNDS
                and _is_number(inner := merged[key])
                and _is_number(value)
            ):
                merged[key] = max(inner, value) if key in _LOWER_BOUNDS else min(inner, value)
            else:
                self.unenforced[key] = None
        return merged

    def _filter_values(self, values: list[Json], schema: Schema) -> list[Schema]:
        """Return the listed values that the schema's other keywords allow, as far as
        those can be checked here.
        """
        self._num_values += len(values)
        if self._num_values > _MAX_VALUES:
            raise Unsupported(f"More than {_MAX_VALUES} values of an argument cannot be enforced.")
        for key in schema.keys() & _ASSERTIONS - {"enum", "const", *_VALUE_CHECKS}:
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


def _as_types(value: Json) -> tuple[str, ...]:
    return find_schema_types({"type": value})


def _is_number(value: Json) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _has_type(value: Json, types: Json) -> bool:
    name = find_schema_types({"const": value})[0]
    return any(
        name == kind or (name == "integer" and kind == "number")
        for kind in find_schema_types({"type": types})
    )


def _compare(
    kind: type | tuple[type, ...], compare: Callable[[float, float], bool]
) -> Callable[[Json, Json], bool]:
    """Build a check that compares a number or a string's length with a limit, and
    allows values of other kinds.
    """

    def check(value: Json, limit: Json) -> bool:
        if (
            not isinstance(value, kind)
            or isinstance(value, bool)
            or not isinstance(limit, int | float)
        ):
            return True
        return compare(len(value) if isinstance(value, str) else value, limit)  # pyright: ignore[reportArgumentType]

    return check


_NUMBERS = (int, float)
_VALUE_CHECKS: Mapping[str, Callable[[Json, Json], bool]] = MappingProxyType(
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
_TEXT_KEYWORDS = frozenset(("format", "pattern"))
_LIST_KEYWORDS = frozenset(
    ("items", "minItems", "maxItems", "uniqueItems", "contains", "prefixItems")
)
_OBJECT_KEYWORDS = frozenset(("properties", "required", "additionalProperties"))


_NO_TEXT_KEYWORDS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *_LIST_KEYWORDS,
    *_OBJECT_KEYWORDS,
)


def _applies(keyword: str, value: Json) -> bool:
    """Whether a keyword can restrict a value of this type."""
    if keyword in _TEXT_KEYWORDS:
        return isinstance(value, str)
    if keyword in _LIST_KEYWORDS:
        return isinstance(value, list)
    if keyword in _OBJECT_KEYWORDS:
        return isinstance(value, dict)
    return keyword != "multipleOf" or _is_number(value)


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


def _filter_objects(value: Json) -> list[Schema]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def build_free_text(schema: Schema, end: str, avoid: tuple[str, ...] = ()) -> FreeText:
    """Build a string that matches this schema, except for its `format`, which cannot be
    enforced.

    end: the text that ends the string.
    avoid: texts that may not occur in it.
    """
    pattern = schema.get("pattern")
    min_length = schema.get("minLength")
    max_length = schema.get("maxLength")
    return FreeText(
        end,
        avoid,
        _anchor_pattern(pattern) if isinstance(pattern, str) else None,
        min_length if isinstance(min_length, int) else 0,
        max_length if isinstance(max_length, int) else None,
        list_unenforced(schema, "type", "pattern", "minLength", "maxLength", *_NO_TEXT_KEYWORDS),
    )


def list_unenforced(schema: Schema, *enforced: str) -> tuple[str, ...]:
    """Return the keywords that restrict a text and are not enforced."""
    return tuple(sorted(schema.keys() & _ASSERTIONS - set(enforced)))


def _anchor_pattern(pattern: str) -> str:
    """Convert a schema's pattern, which may match a part of the string, to one that
    matches the whole string.
    """
    # The unescaped characters outside groups and classes, by position.
    top_level: dict[int, str] = {}
    depth = 0
    escaped = False
    in_class = False
    for index, char in enumerate(pattern):
        if escaped or char == "\\":
            escaped = not escaped
        # Inside a class, brackets and bars are plain characters.
        elif in_class or char == "[":
            in_class = char != "]"
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif depth == 0:
            top_level[index] = char
    # With alternatives at the top level, `^` and `$` apply to one of them only, so they
    # may not be removed.
    if "|" in top_level.values():
        return f"(?s:.*)(?:{pattern})(?s:.*)"
    begins = top_level.get(0) == "^"
    ends = top_level.get(len(pattern) - 1) == "$"
    inner = pattern[begins : len(pattern) - ends]
    if begins and ends:
        return inner
    return f"{'' if begins else '(?s:.*)'}(?:{inner}){'' if ends else '(?s:.*)'}"


def check_free_of_markers(text: str, markers: Sequence[str]) -> str:
    """Return the text. Raises Unsupported if it contains one of these markers."""
    forbidden = next((marker for marker in markers if marker in text), None)
    if forbidden is not None:
        raise Unsupported(
            f"{text[:100]!r} cannot be represented in this model's tool call format: it contains "
            f"{forbidden!r}."
        )
    return text


def build_one_of(options: Sequence[tuple[SyntaxPiece, ...]]) -> tuple[SyntaxPiece, ...]:
    return options[0] if len(options) == 1 else (Alternation(tuple(options)),)


def join_arguments(
    arguments: Sequence[tuple[tuple[SyntaxPiece, ...], bool]], comma: SyntaxPiece
) -> tuple[SyntaxPiece, ...]:
    """Join arguments with commas, required ones (True) before optional ones."""
    required_arguments = [pieces for pieces, required in arguments if required]
    optional_arguments = [pieces for pieces, required in arguments if not required]
    joined: list[SyntaxPiece] = []
    for pieces in required_arguments:
        joined.extend((comma, *pieces) if joined else pieces)
    if required_arguments:
        return *joined, *(OptionalPieces((comma, *pieces)) for pieces in optional_arguments)
    # Without a required argument any optional one may come first, and only the first
    # has no comma before it.
    first = tuple(
        (
            *pieces,
            *(OptionalPieces((comma, *following)) for following in optional_arguments[index + 1 :]),
        )
        for index, pieces in enumerate(optional_arguments)
    )
    return (OptionalPieces((Alternation(first),)),) if first else ()


def check_keywords(schema: Schema, *enforced: str) -> None:
    """Raise Unsupported if a schema has keywords other than these and annotations."""
    others = schema.keys() - {"type", *enforced} - _ANNOTATIONS
    if others:
        raise Unsupported(f"{min(others)!r} can only be enforced in JSON.")


def read_bounds(schema: Schema) -> tuple[int, int | None]:
    """Return the minimum and maximum number of items, None for no maximum.

    Raises Unsupported for more than `_MAX_ITEMS`, since the grammar has one piece per
    item.
    """
    least = schema.get("minItems", 0)
    most = schema.get("maxItems")
    if not isinstance(least, int) or not (most is None or isinstance(most, int)):
        raise Unsupported("The bounds of a list must be integers.")
    if (least if most is None else most) > _MAX_ITEMS or (most is not None and least > most):
        raise Unsupported(f"More than {_MAX_ITEMS} items can only be enforced in JSON.")
    return least, most


def join_items(
    item: tuple[SyntaxPiece, ...], comma: SyntaxPiece, least: int, most: int | None
) -> tuple[SyntaxPiece, ...]:
    """Build a list of `least` to `most` items; None means no maximum."""
    tail: tuple[SyntaxPiece, ...] = (RepeatedPieces((comma, *item)),) if most is None else ()
    for number in range(least if most is None else most, 1, -1):
        following = (comma, *item, *tail)
        tail = following if number <= least else (OptionalPieces(following),)
    items = (*item, *tail)
    if most == 0:
        return ()
    return items if least else (OptionalPieces(items),)


# Names end at white space, a bracket, a quote, `=` or `,`; the name of an argument also
# ends at `:`.
FUNCTION_NAME = re.compile(r"[^\s<>(){}\[\]\"'=,]*")
ARGUMENT_NAME = re.compile(r"[^\s<>(){}\[\]\"'=,:]*")


def check_name(name: str, pattern: re.Pattern[str] = FUNCTION_NAME) -> str:
    """Return the name. Raises Unsupported if the parser could not read it back."""
    if pattern.fullmatch(name) and name:
        return name
    raise Unsupported(
        f"The name {name[:100]!r} cannot be represented in this model's tool call format."
    )


class NameReader:
    """Skips white space, and then reads all characters that may belong to a name."""

    def __init__(self, pattern: re.Pattern[str] = FUNCTION_NAME) -> None:
        self._pattern = pattern
        self._parts: list[str] = []

    def read(self, text: str, pos: int) -> tuple[int, bool]:
        """Continue reading at `pos`. Return the position after the characters read, and
        whether the name has ended.
        """
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
