"""A response template as a format: both of reasoning and of tool calls."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from ...core.errors import Unsupported
from ...core.message import CustomTool, Tool
from ...core.syntax import JsonValue, ParseContext, Parser, Piece, ReasoningFormat, ThoughtSyntax, ToolFormat, Verbatim
from ..hermes import ONE_STRING
from .content import JsonContent, XmlContent
from .pattern import literals, spell
from .regions import Compiled, RegionParser
from .template import Delimiter, Field, Headed, Keyed, Kind, Template, read_template


def load(spec: bytes | str, added: Collection[str] = ()) -> tuple[ReasoningFormat | None, ToolFormat | None]:
    """The formats that a response template (its JSON text) stands for: one object in both places, None where it has
    no such field. added: texts of the vocabulary's added tokens; a delimiter among them counts only as that token.

    Raises ValueError, which names the field, for a template that is wrong or that asks for what is not supported.
    """
    template = read_template(spec)
    format = ResponseTemplateFormat(template, added)
    kinds = {field.kind for field in template.fields}
    return format, format if Kind.CALLS in kinds else None


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
    def thought(self) -> ThoughtSyntax:
        """Raises Unsupported where the template does not say how a thought is written."""
        field = self._field(Kind.REASONING)
        begin = None if field is None else _spelled(field.open)
        end = None if field is None else _spelled(field.close)
        if not begin or not end:
            raise Unsupported("This model's response template does not say how reasoning is written.")
        return ThoughtSyntax(begin, end)

    @property
    def markers(self) -> tuple[str, ...]:
        texts = list(_texts(self._template))
        if not self._added:
            return tuple(dict.fromkeys(texts))
        return tuple(token for token in self._added if any(token in text for text in texts))

    @property
    def between(self) -> str:
        return ""

    def call(self, tool: Tool) -> tuple[Piece, ...]:
        """Raises Unsupported where calls are not JSON, or where the template leaves open how they begin."""
        field = self._field(Kind.CALLS)
        schema = JsonValue(ONE_STRING if isinstance(tool, CustomTool) else tool.parameters)
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
            raise Unsupported("Calls in the form of this model's response template cannot be enforced.")
        return Verbatim(pieces[0]), schema, Verbatim(pieces[1])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c")


def _spelled(delimiter: Delimiter | None, captures: dict[str, str] | None = None) -> str | None:
    """The delimiter as a text; of several texts the first."""
    if delimiter is None:
        return None
    return delimiter.texts[0] if delimiter.texts else spell(delimiter.node, captures or {})


def _texts(template: Template) -> Iterator[str]:
    """Every fixed text that the template looks for."""
    for field in template.fields:
        for delimiter in (field.open, field.close):
            if delimiter is not None:
                yield from delimiter.texts or literals(delimiter.node)
        match field.content:
            case JsonContent(string_delims=delims):
                yield from (mark for pair in delims for mark in pair)
            case XmlContent(tag):
                yield from tag.literals
            case _:
                pass
