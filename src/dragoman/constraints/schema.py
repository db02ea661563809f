"""Validates and bounds JSON Schemas that clients send, before anything is compiled from them.

The keywords that count as cheap were measured with llguidance 1.9 and 2048 tokens: a schema of 2,000 values compiles in
less than 20 ms. Other keywords may take any time, above all if several regular expressions apply to one value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

import msgspec
from msgspec import Struct

from ..core.errors import RequestError

MAX_BYTES = 64 * 1024
MAX_LEVELS = 32
"""Maximum nested schemas."""
MAX_INTERSECTED = 8
"""Maximum regular expressions that may apply to one value: the work to intersect them doubles with each."""

MOST_MULTIPLE = 10_000
"""Maximum `multipleOf` in units of its last digit: the automaton has that many states (0.1 s and 10 MB for 10,000)."""

DRAFTS = frozenset(
    [
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ]
)
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
_APPLICATORS = frozenset({"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"})
"""Keywords that apply other schemas to the same value."""
INERT = frozenset(
    [
        *("$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$schema", "$vocabulary", "default", "definitions"),
        *("deprecated", "description", "example", "examples", "readOnly", "title", "writeOnly", "x-guidance"),
    ]
)
"""Keywords that do not constrain a value."""
Schema: TypeAlias = "dict[str, Json] | bool"


def check_schema(schema: str, param: str) -> None:
    """Raise RequestError for a JSON Schema that `parse_schema` rejects."""
    parse_schema(schema, param)


def parse_schema(schema: str, param: str) -> Schema:
    """Parse a JSON Schema. Raises RequestError if it is invalid, too large, too deep or too expensive."""
    # Characters are counted first, to avoid encoding a huge text.
    if len(schema) > MAX_BYTES or len(schema.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise RequestError(f"The JSON Schema is larger than {MAX_BYTES // 1024} KiB.", param=param)
    try:
        value: Json = msgspec.json.decode(schema)
    except RecursionError as error:
        raise _build_too_deep_error(param) from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise RequestError(f"The JSON Schema is not JSON: {error}", param=param) from error
    if not isinstance(value, (dict, bool)):
        raise RequestError("A JSON Schema must be an object or a boolean.", param=param)
    n_levels, level = 0, [value]
    while level:
        containers = [item for item in level if isinstance(item, (dict, list))]
        level = [part for item in containers for part in (item.values() if isinstance(item, dict) else item)]
        n_levels += bool(containers)
    if n_levels > 2 * MAX_LEVELS:  # A schema level is two JSON levels: `properties`, and a name in it.
        raise _build_too_deep_error(param)
    _check_meta(value, param)
    _check_work(value, param)
    return value


def _build_too_deep_error(param: str) -> RequestError:
    return RequestError(f"The JSON Schema is nested deeper than {MAX_LEVELS} levels.", param=param)


def _check_work(schema: Schema, param: str) -> None:
    """Reject a schema that could take unbounded time to compile. Raises RequestError.

    That is one whose merged parts may intersect too many regular expressions, or whose `multipleOf` has many digits,
    alone or as the least common multiple of those that may be merged.
    """
    objects = [part for part in iterate_parts(schema) if isinstance(part, dict)]
    is_merged = any(combines_schemas(part) for part in objects)
    expressions = {
        text for part in objects for text in (part.get("pattern"), part.get("format")) if isinstance(text, str)
    }
    if is_merged and len(expressions) > MAX_INTERSECTED:
        message = f"More than {MAX_INTERSECTED} patterns and formats in a schema that combines others by allOf or $ref"
        raise RequestError(f"{message} are not supported.", param=param)
    common = Fraction(1)
    for part in objects:
        value = part.get("multipleOf")
        if not isinstance(value, (int, float)):
            continue
        # Parsed from its text: the float 0.1 is not exactly a tenth, its fraction has a denominator of 2**55.
        multiple = abs(Fraction(str(value)))
        if common == 1 or not is_merged:
            common = multiple
        else:
            numerator = math.lcm(common.numerator, multiple.numerator)
            common = Fraction(numerator, math.gcd(common.denominator, multiple.denominator))
        if max(_count_last_digit_units(multiple), _count_last_digit_units(common)) > MOST_MULTIPLE:
            message = f"multipleOf {str(value)[:50]} is not supported: without a decimal point and trailing zeros"
            merged = ", and combined with others that apply to the same value," if common != multiple else ""
            raise RequestError(f"{message}{merged} it may be at most {MOST_MULTIPLE}.", param=param)


def _count_last_digit_units(value: Fraction) -> int:
    """Return a number in units of its last digit that is not zero: 123 for 12.3, 45 for 4,500."""
    digits = Decimal(value.numerator) / Decimal(value.denominator)
    return int(str(digits.normalize()).partition("E")[0].replace(".", "") or 0)


def combines_schemas(part: dict[str, Json]) -> bool:
    """Whether two schemas apply to the same value."""
    all_of = part.get("allOf")
    has_several = isinstance(all_of, list) and len(all_of) > 1
    keywords = part.keys() - INERT
    return has_several or bool(keywords & _APPLICATORS and len(keywords) > 1)


def iterate_parts(schema: Json) -> Iterator[Json]:
    """Yield the schema and all its subschemas."""
    pending = [schema]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part


def _check_meta(schema: Schema, param: str) -> None:
    """Validate against the metaschema. An unknown `$schema` URL is rejected: the library would fetch it.

    Raises RequestError.
    """
    import jsonschema_rs  # noqa: PLC0415 (a schema is rare, and loading takes long)

    draft = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(draft, str) and draft.removesuffix("#") not in DRAFTS:
        raise RequestError(f"Unknown $schema {draft[:200]!r}.", param=param)
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        location = "/".join(map(str, error.instance_path))
        message = f"{error.message[:500]} (at {location[:200]})" if location else error.message[:500]
        raise RequestError(f"Invalid JSON Schema: {message}", param=param) from error
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        raise RequestError(f"Invalid JSON Schema: {error}", param=param) from error


CHEAP_VALUES = 2000
"""Maximum total JSON values in the schemas of a cheap grammar."""
_CHEAP_MULTIPLE = 100
"""Maximum integer `multipleOf` of a cheap grammar."""
_SCHEMAS_BY_NAME = frozenset({"properties", "$defs", "definitions"})
_SCHEMA_LISTS = frozenset({"anyOf", "oneOf", "prefixItems"})
_SCHEMAS = frozenset({"items", "additionalProperties"})
_PLAIN = frozenset(
    [
        *("type", "enum", "const", "required", "$ref", "nullable", "minLength", "maxLength", "minItems", "maxItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "format"),
    ]
)


_BOUNDED_KEYWORDS = INERT | _PLAIN | _SCHEMAS_BY_NAME | _SCHEMA_LISTS | _SCHEMAS
"""The keywords that are cheap to compile, including their subschemas."""


class Work(Struct, frozen=True):
    """The estimated work of a schema.

    values: number of JSON values in it.
    costly: its keywords that may take any time to compile.
    """

    values: int
    costly: frozenset[str] = frozenset()


def estimate(schema: Schema) -> Work:
    """Estimate the work of compiling a schema that `parse_schema` has accepted."""
    costly: set[str] = set()
    pending: list[Json] = [schema]
    while pending:
        part = pending.pop()
        if not isinstance(part, dict):
            continue
        keywords = set(part.keys() - _BOUNDED_KEYWORDS)
        multiple = part.get("multipleOf")
        if isinstance(multiple, int) and multiple <= _CHEAP_MULTIPLE:
            keywords.discard("multipleOf")
        if combines_schemas(part):
            keywords |= part.keys() & {"allOf", "anyOf", "oneOf", "$ref"}
        if "format" in part and part.keys() & {"minLength", "maxLength"}:
            keywords.add("format")
        costly |= keywords
        for keyword, value in part.items():
            if keyword in _SCHEMAS_BY_NAME and isinstance(value, dict):
                pending += value.values()
            elif keyword in _SCHEMA_LISTS and isinstance(value, list):
                pending += value
            elif keyword in _SCHEMAS:
                pending.append(value)
    return Work(sum(1 for _ in iterate_parts(schema)), frozenset(costly))
