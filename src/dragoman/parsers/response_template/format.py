"""A response template as a format: both of reasoning and of tool calls."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence

from ...core.errors import Unsupported
from ...core.message import Tool
from ...core.syntax import JsonValue, ParseContext, Parser, Piece, ReasoningFormat, ThoughtSyntax, ToolFormat, Verbatim
from ..parameters import schema_of
from .content import JsonContent, XmlContent
from .pattern import literals, spell
from .regions import Compiled, RegionParser
from .template import Delimiter, Field, Headed, Keyed, Kind, Template, read_template


def load(spec: bytes | str, added: Collection[str] = ()) -> tuple[ReasoningFormat | None, ToolFormat]:
    """The formats that a response template (its JSON text) stands for: one object in both places, or None for the
    first where the template does not say how reasoning is written.

    added: texts of the vocabulary's added tokens; a delimiter among them counts only as that token.
    Raises ValueError, which names the field, for a template that is wrong or that asks for what is not supported.
    """
    format = ResponseTemplateFormat(read_template(spec), added)
    return format if format.reasons else None, format


class ResponseTemplateFormat:
    """One parser for the whole answer, so that content, reasoning and calls may come in any order."""

    def __init__(self, template: Template, added: Collection[str] = ()) -> None:
        self._template = template
        self._added = added
        self._compiled = Compiled(template, added)

    def parser(self, context: ParseContext) -> Parser:
        return RegionParser(self._compiled, context)

    def _field(self, kind: Kind) -> Field | None:
        return next((field for field in self._template.fields if field.kind is kind), None)

    @property
    def reasons(self) -> bool:
        """The template says how reasoning is written."""
        return all(self._thought())

    @property
    def thought(self) -> ThoughtSyntax:
        return ThoughtSyntax(*self._thought())

    def _thought(self) -> tuple[str, str]:
        field = self._field(Kind.REASONING)
        if field is None:
            return "", ""
        return _spelled(field.open) or "", _spelled(field.close) or ""

    @property
    def markers(self) -> tuple[str, ...]:
        return self._marks(text for field in self._template.fields for text in _texts(field))

    @property
    def openers(self) -> tuple[str, ...]:
        """The markers that begin a call and nothing else: without them there can be none."""
        field = self._field(Kind.CALLS)
        others = [text for other in self._template.fields if other is not field for text in _texts(other)]
        opening = _delimiter_texts(None if field is None else field.open)
        return tuple(mark for mark in self._marks(opening) if not any(mark in text for text in others))

    def _marks(self, texts: Iterable[str]) -> tuple[str, ...]:
        """The added tokens in these texts; the texts themselves where no added tokens are known."""
        found = tuple(dict.fromkeys(texts))
        if not self._added:
            return found
        return tuple(token for token in self._added if any(token in text for text in found))

    @property
    def around(self) -> tuple[str, str]:
        return "", ""

    @property
    def between(self) -> str:
        return ""

    @property
    def leading(self) -> bool:
        return False

    def call(self, tool: Tool) -> tuple[Piece, ...]:
        """Raises Unsupported where calls are not JSON, or where the template leaves open how they begin."""
        field = self._field(Kind.CALLS)
        schema = JsonValue(schema_of(tool))
        closing = "" if field is None or field.close is None else _spelled(field.close)
        match None if field is None else field.shape:
            case Keyed(name, arguments):
                before = _spelled(field.open if field else None)
                keys = f"{{{_quoted(name)}: {_quoted(tool.name)}, {_quoted(arguments[0])}: "
                pieces = (None if before is None else before + keys, None if closing is None else "}" + closing)
            case Headed(capture):
                pieces = (_spelled(field.open if field else None, {capture: tool.name}), closing)
            case _:
                pieces = (None, None)
        if pieces[0] is None or pieces[1] is None:
            raise Unsupported("Tool calls cannot be enforced with this model's response template.")
        return Verbatim(pieces[0]), schema, Verbatim(pieces[1])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c")


def _spelled(delimiter: Delimiter | None, captures: dict[str, str] | None = None) -> str | None:
    """The delimiter as a text; of several texts the first."""
    if delimiter is None:
        return None
    return delimiter.texts[0] if delimiter.texts else spell(delimiter.node, captures or {})


def _delimiter_texts(delimiter: Delimiter | None) -> Sequence[str]:
    if delimiter is None:
        return ()
    return delimiter.texts or literals(delimiter.node)


def _texts(field: Field) -> Iterator[str]:
    """Every fixed text that a field looks for."""
    yield from _delimiter_texts(field.open)
    yield from _delimiter_texts(field.close)
    match field.content:
        case JsonContent(string_delims=delims):
            yield from (mark for pair in delims for mark in pair)
        case XmlContent(tag):
            yield from tag.literals
        case _:
            pass
