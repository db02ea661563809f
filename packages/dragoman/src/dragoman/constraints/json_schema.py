"""Validates JSON Schemas that clients send, before anything is compiled from them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from ..core.errors import RequestError
from ..core.json_types import JsonObject, JsonValue
from ..core.rust_panics import convert_panics

if TYPE_CHECKING:
    from fractions import Fraction

Schema: TypeAlias = JsonObject | bool


MAX_BYTES = 64 * 1024
MAX_DEPTH = 32
"""Maximum nested schemas."""
MAX_INTERSECTED_PATTERNS = 8
"""Maximum regular expressions that may apply to one value: the work to intersect them
doubles with each.
"""
MAX_MULTIPLE = 10_000
"""Maximum `multipleOf` in units of its last digit: the automaton has that many states
(0.1 s and 10 MB for 10,000).
"""
CHEAP_VALUES = 2000
"""Maximum total JSON values in the schemas of a cheap grammar."""
_CHEAP_MULTIPLE = 100
"""Maximum integer `multipleOf` of a cheap grammar."""


DRAFTS = frozenset(
    [
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ]
)
_APPLICATORS = frozenset({"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"})
"""Keywords that apply other schemas to the same value."""
INERT = frozenset(
    [
        *(
            "$anchor",
            "$comment",
            "$defs",
            "$dynamicAnchor",
            "$id",
            "$schema",
            "$vocabulary",
            "default",
            "definitions",
        ),
        *(
            "deprecated",
            "description",
            "example",
            "examples",
            "readOnly",
            "title",
            "writeOnly",
            "x-guidance",
        ),
    ]
)
"""Keywords that do not constrain a value."""
DATA_KEYWORDS = frozenset({"const", "enum", "default", "example", "examples"})
"""Keywords whose values are no schemas."""
_CHEAP_SCHEMAS_BY_NAME = frozenset({"properties", "$defs", "definitions"})
SCHEMAS_BY_NAME = _CHEAP_SCHEMAS_BY_NAME | {
    "patternProperties",
    "dependentSchemas",
    "dependencies",
}
_CHEAP_SUBSCHEMAS = frozenset({"anyOf", "oneOf", "prefixItems", "items", "additionalProperties"})
_ASSERTION_KEYWORDS = frozenset(
    [
        *(
            "type",
            "enum",
            "const",
            "required",
            "$ref",
            "nullable",
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
        ),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "format"),
    ]
)
_CHEAP_KEYWORDS = INERT | _ASSERTION_KEYWORDS | _CHEAP_SCHEMAS_BY_NAME | _CHEAP_SUBSCHEMAS
"""The keywords that are cheap to compile, including their subschemas."""
_CHEAP_REFERENCE = re.compile(
    r"#(/(\$defs|definitions|properties)/[^/%]*|/(items|additionalProperties)|/(anyOf|oneOf|prefixItems|items)/\d+)*"
)
"""References to schemas whose cost is estimated. Others may lead into an example, for
instance.
"""


def parse_schema(schema: str, param: str) -> Schema:
    """Parse a JSON Schema. Raises RequestError if it is invalid, too large, too deep or
    too expensive.
    """
    # Characters are counted first, to avoid encoding a huge text.
    if len(schema) > MAX_BYTES or len(schema.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise RequestError(f"The JSON Schema is larger than {MAX_BYTES // 1024} KiB.", param=param)
    try:
        value: JsonValue = msgspec.json.decode(schema)
    except RecursionError as error:
        raise _build_too_deep_error(param) from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise RequestError(f"The JSON Schema is not JSON: {error}", param=param) from error
    if not isinstance(value, (dict, bool)):
        raise RequestError("A JSON Schema must be an object or a boolean.", param=param)
    n_levels = 0
    level = [value]
    while level:
        containers = [item for item in level if isinstance(item, (dict, list))]
        level = [
            part
            for item in containers
            for part in (item.values() if isinstance(item, dict) else item)
        ]
        n_levels += bool(containers)
    if (
        n_levels > 2 * MAX_DEPTH
    ):  # A schema level is two JSON levels: `properties`, and a name in it.
        raise _build_too_deep_error(param)
    _check_against_metaschema(value, param)
    parts = list(iterate_schemas(value))
    is_merged = any(map(combines_schemas, parts))
    if is_merged:
        _check_patterns(parts, param)
    _check_multiples(parts, is_merged, param)
    return value


def _build_too_deep_error(param: str) -> RequestError:
    return RequestError(f"The JSON Schema is nested deeper than {MAX_DEPTH} levels.", param=param)


def _check_patterns(parts: list[JsonObject], param: str) -> None:
    """Reject too many regular expressions in a schema whose parts may be merged. Raises
    RequestError.
    """
    expressions = {
        text
        for part in parts
        for text in (part.get("pattern"), part.get("format"))
        if isinstance(text, str)
    }
    if len(expressions) > MAX_INTERSECTED_PATTERNS:
        raise RequestError(
            f"More than {MAX_INTERSECTED_PATTERNS} patterns and formats in a schema that combines "
            f"others by allOf or "
            "$ref are not supported.",
            param=param,
        )


def _check_multiples(parts: list[JsonObject], is_merged: bool, param: str) -> None:
    """Reject a `multipleOf` of many digits, alone or as the least common multiple of
    those that may be merged.

    Raises RequestError.
    """
    values = [
        value
        for value in (part.get("multipleOf") for part in parts)
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    if not values:
        return
    from fractions import Fraction  # noqa: PLC0415 - takes long to import, and few schemas need it

    common = Fraction(1)
    for value in values:
        # Parsed from its text: the float 0.1 is not exactly a tenth, its fraction has a
        # denominator of 2**55.
        multiple = abs(Fraction(str(value)))
        if common == 1 or not is_merged:
            common = multiple
        else:
            numerator = math.lcm(common.numerator, multiple.numerator)
            common = Fraction(numerator, math.gcd(common.denominator, multiple.denominator))
        if max(_count_last_digit_units(multiple), _count_last_digit_units(common)) > MAX_MULTIPLE:
            merged = (
                " (together with the other multipleOf of the same value)"
                if common != multiple
                else ""
            )
            raise RequestError(
                f"multipleOf {str(value)[:50]}{merged} is too expensive: in units of its last "
                f"nonzero digit it may "
                f"be at most {MAX_MULTIPLE}.",
                param=param,
            )


def _count_last_digit_units(value: Fraction) -> int:
    """Return a number in units of its last digit that is not zero: 123 for 12.3, 45 for
    4,500.
    """
    digits = Decimal(value.numerator) / Decimal(value.denominator)
    return int(str(digits.normalize()).partition("E")[0].replace(".", "") or 0)


def combines_schemas(part: JsonObject) -> bool:
    """Whether the schema combines others: several in `allOf`, or `anyOf`, `oneOf` or a
    reference beside other keywords.

    An `anyOf` alone does not.
    """
    all_of = part.get("allOf")
    has_several = isinstance(all_of, list) and len(all_of) > 1
    keywords = part.keys() - INERT
    return has_several or bool(keywords & _APPLICATORS and len(keywords) > 1)


def iterate_schemas(schema: JsonValue) -> Iterator[JsonObject]:
    """Yield the schema, its subschemas and the maps of subschemas, such as
    `properties`, as far as they are objects.

    Values such as those of `const` are included only if a reference may lead into them:
    llguidance follows it.
    """
    pending: list[JsonValue] = [schema]
    data: list[JsonValue] = []
    refers_to_data = False
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            yield part
            for keyword, value in part.items():
                if keyword in DATA_KEYWORDS:
                    data.append(value)
                elif keyword in SCHEMAS_BY_NAME and isinstance(value, dict):
                    yield value
                    pending += value.values()
                else:
                    pending.append(value)
                    if keyword in ("$ref", "$dynamicRef") and isinstance(value, str):
                        reference = unquote(value)
                        refers_to_data |= any(
                            f"/{keyword}" in reference for keyword in DATA_KEYWORDS
                        )
        if not pending and refers_to_data:
            pending = data
            data = []


def _check_against_metaschema(schema: Schema, param: str) -> None:
    """Validate against the metaschema. An unknown `$schema` URL is rejected: the
    library would fetch it.

    Raises RequestError.
    """
    import jsonschema_rs  # noqa: PLC0415 (a schema is rare, and loading takes long)

    draft = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(draft, str) and draft.removesuffix("#") not in DRAFTS:
        raise RequestError(f"Unknown $schema {draft[:200]!r}.", param=param)
    try:
        with convert_panics(lambda: RequestError("The JSON Schema cannot be read.", param=param)):
            jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        location = "/".join(map(str, error.instance_path))
        message = (
            f"{error.message[:500]} (at {location[:200]})" if location else error.message[:500]
        )
        raise RequestError(f"Invalid JSON Schema: {message}", param=param) from error
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        raise RequestError(f"Invalid JSON Schema: {error}", param=param) from error


class CompileCost(Struct, frozen=True):
    """The estimated cost of compiling a schema.

    values: number of JSON values in it.
    costly: its keywords that may take any time to compile.
    """

    values: int
    costly: frozenset[str] = frozenset()


def estimate_compile_cost(schema: Schema) -> CompileCost:
    """Estimate the cost of compiling a schema that `parse_schema` has accepted."""
    costly: set[str] = set()
    pending: list[JsonValue] = [schema]
    while pending:
        part = pending.pop()
        if not isinstance(part, dict):
            continue
        costly |= part.keys() - _CHEAP_KEYWORDS - {"multipleOf"}
        multiple = part.get("multipleOf", 1)
        reference = part.get("$ref", "#")
        if not isinstance(multiple, int) or multiple > _CHEAP_MULTIPLE:
            costly.add("multipleOf")
        if not isinstance(reference, str) or not _CHEAP_REFERENCE.fullmatch(reference):
            costly.add("$ref")
        if combines_schemas(part):
            costly |= part.keys() & _APPLICATORS
        if "format" in part and part.keys() & {"minLength", "maxLength"}:
            costly.add("format")
        for keyword, value in part.items():
            if keyword in _CHEAP_SCHEMAS_BY_NAME and isinstance(value, dict):
                pending += value.values()
            elif keyword in _CHEAP_SCHEMAS_BY_NAME | _CHEAP_SUBSCHEMAS:
                # Before draft 2020-12, `items` may be a list.
                pending += value if isinstance(value, list) else [value]
    return CompileCost(_count_values(schema), frozenset(costly))


def _count_values(schema: JsonValue) -> int:
    count = 0
    pending = [schema]
    while pending:
        part = pending.pop()
        count += 1
        if isinstance(part, (dict, list)):
            pending += part.values() if isinstance(part, dict) else part
    return count
