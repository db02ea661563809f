"""Tool calls with each argument between tags:
`<function=f><parameter=x>1</parameter></function>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..core.message import Tool
from ..core.syntax import (
    FreeText,
    JsonPiece,
    LiteralText,
    OptionalPieces,
    RepeatedPieces,
    SyntaxPiece,
)
from .argument_pieces import build_free_text, build_one_of, check_free_of_markers, list_unenforced
from .call_names import check_name
from .call_reader import CallReader
from .json_codec import encode
from .schema_alternatives import Schema, expand_alternatives
from .schema_types import find_schema_types
from .tool_parameters import read_enforceable_parameters
from .xml_call_reader import XmlTagReader
from .xml_tags import TagPatterns, TagSyntax, escape_name, is_text_kind


class XmlTagSyntax(TagSyntax, frozen=True):
    """The syntax of calls with tags."""

    def compile(self, openers: tuple[str, ...], closers: tuple[str, ...]) -> CompiledXmlTagSyntax:
        return CompiledXmlTagSyntax(self, openers, closers)


class CompiledXmlTagSyntax:
    """A `CallSyntax` of calls with tags.

    openers, closers: delimiters, which also end a call without its end tag.
    """

    def __init__(
        self, syntax: XmlTagSyntax, openers: tuple[str, ...], closers: tuple[str, ...]
    ) -> None:
        self.syntax = syntax
        self.patterns = TagPatterns(syntax, openers, closers)

    @property
    def markers(self) -> tuple[str, ...]:
        syntax = self.syntax
        texts = (
            syntax.name_suffix,
            syntax.number_suffix,
            syntax.key_tag,
            *(text for text, _ in syntax.key_end_tags),
            syntax.value_tag,
            syntax.value_end_tag,
            syntax.end_tag,
        )
        return tuple(filter(None, texts))

    @property
    def end_markers(self) -> tuple[str, ...]:
        return (self.syntax.end_tag,)

    def can_begin_with(self, char: str) -> bool:  # noqa: ARG002
        return False

    def list_heads(self, name: str) -> Sequence[str]:
        syntax = self.syntax
        if syntax.key_tag != self.patterns.key_mark:
            return f'"{name}"', f"'{name}'"
        if syntax.name_suffix:
            return (name + syntax.name_suffix,)
        tags = (syntax.key_tag, syntax.end_tag)
        return [name + space + tag for space in ("", "\n") for tag in tags]

    def build_reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:  # noqa: ARG002
        return XmlTagReader(self.patterns, tools)

    def build_pieces(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        parameters = read_enforceable_parameters(tool)
        syntax = self.syntax
        arguments: list[SyntaxPiece] = []
        for parameter in parameters.properties:
            name = check_free_of_markers(parameter.name, [*self.patterns.key_end_tags, "\n"])
            if syntax.has_escaped_names:
                name = escape_name(name)
            schemas, unenforced = expand_alternatives(parameter.schema)
            values = build_one_of(list(self._build_values(schemas)))
            pieces = LiteralText(syntax.key_tag + name, unenforced), *values
            arguments += pieces if parameter.required else (OptionalPieces(pieces),)
        if parameters.allows_additional:
            ending = next(
                text for text, kind in syntax.key_end_tags if is_text_kind(kind) is not False
            )
            prefix, suffix = self._find_surroundings(ending)
            key = FreeText(prefix, pattern="[A-Za-z_][A-Za-z0-9_]*")
            any_argument = (
                LiteralText(syntax.key_tag),
                key,
                FreeText(suffix, self.patterns.forbidden_in_values),
            )
            arguments.append(RepeatedPieces(any_argument))
        number = (
            (FreeText(syntax.number_suffix, pattern="[0-9]{1,2}"),) if syntax.number_suffix else ()
        )
        return (
            LiteralText(check_name(tool.name) + syntax.name_suffix, parameters.unenforced),
            *number,
            LiteralText(syntax.line_break),
            *arguments,
            LiteralText(syntax.end_tag),
        )

    def _build_values(self, schemas: list[Schema]) -> Iterator[tuple[SyntaxPiece, ...]]:
        """Yield, for each tag that may end the key, the pieces of each value that may
        follow it.
        """
        for ending, kind in self.syntax.key_end_tags:
            is_text = is_text_kind(kind)
            prefix, suffix = self._find_surroundings(ending)
            for schema in schemas:
                # The tags have no type `integer`, only `number`.
                if (
                    isinstance(kind, str)
                    and not is_text
                    and kind
                    not in [
                        "number" if name == "integer" else name
                        for name in find_schema_types(schema)
                    ]
                ):
                    continue
                match schema:
                    case {"const": str() as constant} if is_text is not False:
                        yield (
                            LiteralText(
                                prefix
                                + check_free_of_markers(constant, self.patterns.forbidden_in_values)
                                + suffix
                            ),
                        )
                    case {"const": str()} | {"type": "string"} if is_text is False:
                        pass
                    case {"type": "string"}:
                        yield (
                            LiteralText(prefix),
                            build_free_text(schema, suffix, self.patterns.forbidden_in_values),
                        )
                    case {"type": _} | {"const": _} if is_text is not True:
                        yield (
                            LiteralText(prefix),
                            JsonPiece(encode(schema), allows_any_type=True),
                            LiteralText(suffix),
                        )
                    case {"type": _} | {"const": _}:
                        pass
                    case _ if is_text is not False:
                        text = FreeText(
                            suffix,
                            self.patterns.forbidden_in_values,
                            unenforced=list_unenforced(schema),
                        )
                        yield LiteralText(prefix), text
                    case _:
                        pass

    def _find_surroundings(self, ending: str) -> tuple[str, str]:
        syntax = self.syntax
        tag = syntax.tag_separator + syntax.value_tag if syntax.value_tag else ""
        return (
            ending + tag + syntax.value_padding,
            syntax.value_padding + syntax.value_end_tag + syntax.line_break,
        )
