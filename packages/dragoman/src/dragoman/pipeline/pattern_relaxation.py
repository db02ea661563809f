"""Search for the regular expressions that keep a schema from being enforced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from ..constraints.json_schema import parse_schema
from ..constraints.schema_patterns import (
    describe_rejection,
    find_patterns,
    is_regex,
    remove_patterns,
)
from ..core.errors import RequestError
from ..core.json_types import JsonObject

_MAX_PATTERNS = 64
"""Maximum patterns of a schema that are tried one by one."""


class RelaxedSchema(Struct, frozen=True):
    """A schema without the patterns that cannot be enforced.

    schema: a JSON Schema as JSON text.
    removed: a description of each pattern that it lacks.
    """

    schema: str
    removed: tuple[str, ...]


async def relax_patterns(
    schema: str,
    param: str,
    compile_schema: Callable[[str], Awaitable[object]],
    *,
    must_be_valid: bool = False,
) -> RelaxedSchema | None:
    """Remove the patterns that are not compiled alone either; None if there are none.

    A grammar's error does not tell which of its patterns is the cause.

    schema: a JSON Schema as JSON text, which does not compile.
    param: its field, for errors.
    compile_schema: compiles a schema in the grammar of the response.
    must_be_valid: return None for a pattern that is no regular expression.

    Raises:
        RequestError: the schema itself is invalid.
    """
    parsed = parse_schema(schema, param)
    places = find_patterns(parsed)
    if not places or len(places) > _MAX_PATTERNS:
        return None
    rejected: dict[str, str] = {}
    for pattern in places:
        try:
            await compile_schema(_build_probe(pattern))
        except RequestError as error:
            rejected[pattern] = error.message
    if not rejected or (must_be_valid and not all(map(is_regex, rejected))):
        return None
    relaxed = remove_patterns(parsed, rejected)
    removed = [
        describe_rejection(place, message)
        for pattern, message in rejected.items()
        for place in places[pattern]
    ]
    return RelaxedSchema(msgspec.json.encode(relaxed).decode(), tuple(removed))


def _build_probe(pattern: str) -> str:
    """Build a schema whose only difficulty is the pattern; an object, as arguments are."""
    value: JsonObject = {"type": "string", "pattern": pattern}
    probe: JsonObject = {"type": "object", "properties": {"a": value}, "required": ["a"]}
    return msgspec.json.encode(probe).decode()
