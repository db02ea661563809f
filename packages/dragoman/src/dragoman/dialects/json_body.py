"""The description of a JSON body, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from .parameter_table import ParameterTable


class JsonBody(Struct, frozen=True):
    """The JSON object of a request.

    name: the name of its schema.
    structs: the structs that readers decode it to; the object has the fields of all of
        them.
    table: the rows of its fields, including fields that no struct has: accepted without
        an effect, or rejected.
    nested: the bodies of fields that readers decode separately, by field.
    example: a minimal body.
    """

    name: str
    structs: tuple[type[Struct], ...]
    table: ParameterTable | None = None
    nested: Mapping[str, JsonBody] | None = None
    example: Mapping[str, Any] | None = None


HELLO = [{"role": "user", "content": "Hello"}]
"""The messages of an example."""
