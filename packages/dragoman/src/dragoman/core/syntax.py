"""The syntax in which a model writes reasoning and tool calls, as data: parsers parse
it, constraints enforce it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from .events import Event
from .message import Tool


class LiteralText(Struct, frozen=True, tag=True):
    """Exactly this text. Names of added tokens in it stand for those tokens.

    unenforced: schema keywords of the argument that begins here that are not enforced.
    """

    text: str
    unenforced: tuple[str, ...] = ()


class JsonPiece(Struct, frozen=True, tag=True):
    """JSON that follows a schema.

    schema: JSON text; None is any JSON.
    allows_any_type: any JSON value is allowed, not only an object.
    """

    schema: str | None
    allows_any_type: bool = False


class FreeText(Struct, frozen=True, tag=True):
    """Any text up to the first `end`, which is part of the syntax too.

    avoid: substrings that may not occur in it.
    pattern: regular expression that the whole text must match.
    min_length, max_length: length limits in characters.
    unenforced: keywords of the text's schema that are not enforced.
    """

    end: str
    avoid: tuple[str, ...] = ()
    pattern: str | None = None
    min_length: int = 0
    max_length: int | None = None
    unenforced: tuple[str, ...] = ()


class Alternation(Struct, frozen=True, tag=True):
    options: tuple[tuple[SyntaxPiece, ...], ...]


class OptionalPieces(Struct, frozen=True, tag=True):
    """Pieces that occur once or not at all."""

    pieces: tuple[SyntaxPiece, ...]


class RepeatedPieces(Struct, frozen=True, tag=True):
    """Pieces that repeat any number of times, including zero."""

    pieces: tuple[SyntaxPiece, ...]


SyntaxPiece = LiteralText | JsonPiece | FreeText | Alternation | OptionalPieces | RepeatedPieces


class ReasoningSyntax(Struct, frozen=True):
    """The delimiters of reasoning.

    begin, end: the start and end delimiters.
    end_suffix: text that the template writes after the end delimiter.
    answer_prefix: text before the text part of every answer.
    """

    begin: str
    end: str
    end_suffix: str = ""
    answer_prefix: str = ""


class ParseContext(Struct, frozen=True):
    """The part of a request that its parser needs.

    prompt_tail: the end of the rendered prompt from the start of the assistant's turn,
    so that a parser knows which delimiters the template has already opened.
    tools: the callable tools; a call of any other stays text.
    new_id: generates the id of a call.
    """

    prompt_tail: str
    tools: tuple[Tool, ...]
    new_id: Callable[[], str]


class Parser(Protocol):
    """The parser of one choice, for streamed and complete answers alike.

    `feed` maps a TextDelta to the parsed events, possibly none yet. It maps
    ChoiceFinished to everything buffered, followed by the ChoiceFinished with the
    tokens that no event has carried. Any other event passes through. Invariant: the
    folded result does not depend on how the text is split into events, and no token is
    lost.

    is_done: whether every later event passes through, so that it need not be fed.
    """

    is_done: bool

    def feed(self, event: Event) -> list[Event]: ...


class ReasoningFormat(Protocol):
    """A format that separates reasoning from text."""

    @property
    def syntax(self) -> ReasoningSyntax:
        """The delimiters of reasoning, for grammars."""
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must reach the parser even if they are control tokens."""
        ...

    def create_parser(self, context: ParseContext) -> Parser:
        """Create the parser of one choice."""
        ...


class ToolFormat(Protocol):
    """A format that separates tool calls from text."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must reach the parser even if they are control tokens."""
        ...

    @property
    def call_openers(self) -> tuple[str, ...]:
        """The markers that can only begin a call; they are masked in requests where no
        tool may be called.
        """
        ...

    def create_parser(self, context: ParseContext) -> Parser:
        """Create the parser of one choice."""
        ...

    def build_call_syntax(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        """Build the syntax of an enforced call of this tool.

        Raises:
            Unsupported: the format cannot express such a call.
        """
        ...

    @property
    def section_delimiters(self) -> tuple[str, str]:
        """The texts before the first and after the last call of an answer."""
        ...

    @property
    def call_separator(self) -> str:
        """The text between two calls of one answer."""
        ...

    @property
    def has_unmarked_calls(self) -> bool:
        """Whether calls begin without a marker: text is a call only if nothing but
        reasoning precedes it.
        """
        ...


def get_tool_names(tools: Sequence[Tool]) -> frozenset[str]:
    return frozenset(tool.name for tool in tools)
