"""The reasoning and tool format that a response template defines."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence

from ...core.errors import Unsupported
from ...core.message import Tool
from ...core.syntax import (
    JsonPiece,
    LiteralText,
    ParseContext,
    Parser,
    ReasoningFormat,
    ReasoningSyntax,
    SyntaxPiece,
    ToolFormat,
)
from ..stream_regex import find_literals, render_pattern
from ..tool_parameters import build_arguments_schema
from .content import JsonContent, XmlContent
from .region_parser import CompiledTemplate, RegionParser
from .template import (
    Delimiter,
    FieldKind,
    KeyedCallLayout,
    NamedByDelimiterLayout,
    ResponseTemplate,
    TemplateField,
)
from .template_reader import read_template


def load(
    spec: bytes | str, added_tokens: Collection[str] = ()
) -> tuple[ReasoningFormat | None, ToolFormat]:
    """Load the reasoning format and the tool format of a response template.

    Both are the same object; the reasoning format is None if the template does not
    define reasoning.

    spec: the template as JSON text.
    added_tokens: texts of the vocabulary's added tokens; a delimiter among them counts
        only as that token.

    Raises:
        ValueError: the template is invalid or needs an unsupported feature; the message
            names the field.
    """
    format = ResponseTemplateFormat(read_template(spec), added_tokens)
    return format if format.has_reasoning else None, format


class ResponseTemplateFormat:
    """The reasoning and tool format that a response template defines.

    One parser reads the whole response, as content, reasoning and calls may occur in
    any order.
    """

    def __init__(self, template: ResponseTemplate, added_tokens: Collection[str] = ()) -> None:
        self._template = template
        self._added_tokens = added_tokens
        self._compiled = CompiledTemplate(template, added_tokens)

    def create_parser(self, context: ParseContext) -> Parser:
        return RegionParser(self._compiled, context)

    def _find_field(self, kind: FieldKind) -> TemplateField | None:
        return next((field for field in self._template.fields if field.kind is kind), None)

    @property
    def has_reasoning(self) -> bool:
        """Whether the template defines reasoning."""
        return all(self._find_reasoning_delimiters())

    @property
    def syntax(self) -> ReasoningSyntax:
        return ReasoningSyntax(*self._find_reasoning_delimiters())

    def _find_reasoning_delimiters(self) -> tuple[str, str]:
        field = self._find_field(FieldKind.REASONING)
        if field is None:
            return "", ""
        return _render_delimiter(field.open) or "", _render_delimiter(field.close) or ""

    @property
    def markers(self) -> tuple[str, ...]:
        return self._select_markers(
            text for field in self._template.fields for text in _find_field_texts(field)
        )

    @property
    def call_openers(self) -> tuple[str, ...]:
        """The markers that begin a call and nothing else: without them there can be no
        call.
        """
        field = self._find_field(FieldKind.CALLS)
        other_texts = [
            text
            for other_field in self._template.fields
            if other_field is not field
            for text in _find_field_texts(other_field)
        ]
        opening = _find_delimiter_texts(None if field is None else field.open)
        return tuple(
            marker
            for marker in self._select_markers(opening)
            if not any(marker in text for text in other_texts)
        )

    def _select_markers(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Return the added tokens in these texts, or the texts themselves if no added
        tokens are known.
        """
        unique_texts = tuple(dict.fromkeys(texts))
        if not self._added_tokens:
            return unique_texts
        return tuple(
            token for token in self._added_tokens if any(token in text for text in unique_texts)
        )

    @property
    def section_delimiters(self) -> tuple[str, str]:
        return "", ""

    @property
    def call_separator(self) -> str:
        return ""

    @property
    def has_unmarked_calls(self) -> bool:
        return False

    def build_call_syntax(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        """Build the syntax of enforced calls.

        Raises:
            Unsupported: calls are not JSON, or a delimiter has no fixed text.
        """
        field = self._find_field(FieldKind.CALLS)
        schema = JsonPiece(build_arguments_schema(tool))
        closing = "" if field is None or field.close is None else _render_delimiter(field.close)
        match None if field is None else field.call_layout:
            case KeyedCallLayout(name, arguments):
                opening = _render_delimiter(field.open if field else None)
                keys = (
                    f"{{{_encode_string(name)}: {_encode_string(tool.name)}, "
                    f"{_encode_string(arguments[0])}: "
                )
                pieces = (
                    None if opening is None else opening + keys,
                    None if closing is None else "}" + closing,
                )
            case NamedByDelimiterLayout(capture):
                pieces = (
                    _render_delimiter(field.open if field else None, {capture: tool.name}),
                    closing,
                )
            case _:
                pieces = (None, None)
        if pieces[0] is None or pieces[1] is None:
            raise Unsupported("Tool calls cannot be enforced with this model's response template.")
        return LiteralText(pieces[0]), schema, LiteralText(pieces[1])


def _encode_string(text: str) -> str:
    # Delimiters usually begin with `<`; escaped, none can begin inside the string.
    return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c")


def _render_delimiter(
    delimiter: Delimiter | None, captures: dict[str, str] | None = None
) -> str | None:
    """Return the delimiter as text, the first if it has several; None if its text is
    not fixed.
    """
    if delimiter is None:
        return None
    return delimiter.texts[0] if delimiter.texts else render_pattern(delimiter.node, captures or {})


def _find_delimiter_texts(delimiter: Delimiter | None) -> Sequence[str]:
    if delimiter is None:
        return ()
    return delimiter.texts or find_literals(delimiter.node)


def _find_field_texts(field: TemplateField) -> Iterator[str]:
    """Yield all fixed texts that the field's delimiters and content contain."""
    yield from _find_delimiter_texts(field.open)
    yield from _find_delimiter_texts(field.close)
    match field.content:
        case JsonContent(string_delims=delimiters):
            yield from (delimiter for pair in delimiters for delimiter in pair)
        case XmlContent(tag):
            yield from tag.literals
        case _:
            pass
