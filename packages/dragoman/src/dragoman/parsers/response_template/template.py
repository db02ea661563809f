"""A validated response template.

The format is transformers' `response_template`, version 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from msgspec import Struct

from ...core.json_types import JsonValue
from ..stream_regex import (
    Node,
)
from .content import Content

# A dotted path in braces, such as `{content.name}`.
_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def parse_placeholder(placeholder: str) -> list[str] | None:
    """Parse `{a.b}` into the path [a, b]; return None for text without a placeholder.

    Raises ValueError for a placeholder that is mixed with other text.
    """
    match = _PLACEHOLDER.fullmatch(placeholder)
    if match is None and _PLACEHOLDER.search(placeholder):
        raise ValueError(f"{placeholder!r} mixes a placeholder with other text")
    return None if match is None else match[1].split(".")


def check_transform(transform: JsonValue) -> None:
    """Raise ValueError for an invalid transform."""
    match transform:
        case dict():
            for inner in transform.values():
                check_transform(inner)
        case list():
            for inner in transform:
                check_transform(inner)
        case str():
            parse_placeholder(transform)
        case _:
            pass


def fill_transform(transform: JsonValue, scope: Mapping[str, JsonValue]) -> JsonValue:
    """Replace the transform's placeholders with the values at their paths. Raises
    ValueError if a path is missing.
    """
    match transform:
        case dict():
            return {key: fill_transform(inner, scope) for key, inner in transform.items()}
        case list():
            return [fill_transform(inner, scope) for inner in transform]
        case str() if (path := parse_placeholder(transform)) is not None:
            value: JsonValue = dict(scope)
            for key in path:
                if not isinstance(value, dict) or key not in value:
                    raise ValueError(f"there is no {'.'.join(path)}")
                value = value[key]
            return value
        case _:
            return transform


class FieldKind(Enum):
    """The role of a message field."""

    TEXT = "text"
    REASONING = "reasoning"
    CALLS = "calls"


FIELD_KINDS = MappingProxyType(
    {
        "content": FieldKind.TEXT,
        "reasoning_content": FieldKind.REASONING,
        "reasoning": FieldKind.REASONING,
        "thinking": FieldKind.REASONING,
        "tool_calls": FieldKind.CALLS,
    }
)
"""The supported message fields, by the names that templates use."""


class KeyedCallLayout(Struct, frozen=True):
    """A call is one JSON object with these keys."""

    name_key: str
    argument_keys: tuple[str, ...]


class NamedByDelimiterLayout(Struct, frozen=True):
    """The opening delimiter captures the name; the JSON is the arguments."""

    name_group: str


class BufferedCallLayout(Struct, frozen=True):
    """The call can be parsed only when the region is closed."""


CallLayout = KeyedCallLayout | NamedByDelimiterLayout | BufferedCallLayout


class Delimiter(Struct, frozen=True):
    """A delimiter.

    node: the pattern that matches it.
    texts: its alternative texts; () if the template defines it by a pattern.
    """

    node: Node
    texts: tuple[str, ...] = ()


class TemplateField(Struct, frozen=True):
    """A field of the message.

    open: None for the implicit field, which takes the text outside all regions.
    close: None if only the end of the response closes the region.
    content: how the region's text is parsed.
    repeats: the field may have several regions.
    join: separator between the texts of several regions.
    transform: JSON value with placeholders, which converts the parsed content; None for
        none.
    transform_each: the transform is applied to each item of the content, which is a
        list.
    call_layout: how calls are written; used for fields of calls only.
    """

    name: str
    kind: FieldKind
    open: Delimiter | None
    close: Delimiter | None
    content: Content
    repeats: bool
    join: str
    transform: JsonValue
    transform_each: bool
    call_layout: CallLayout


class ResponseTemplate(Struct, frozen=True):
    """A validated response template.

    anchor: its last match in the prompt ends where the parsed text begins.
    """

    fields: tuple[TemplateField, ...]
    anchor: Delimiter

    @property
    def implicit(self) -> TemplateField | None:
        """The field that takes the text outside all regions."""
        return next((field for field in self.fields if field.open is None), None)
