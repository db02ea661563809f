"""How a model writes reasoning and tool calls, as data: parsers read it, constraints enforce it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from .events import Event
from .message import Tool


class LiteralText(Struct, frozen=True, tag=True):
    """Exactly this text. Names of added tokens in it stand for those tokens."""

    text: str


class JsonValue(Struct, frozen=True, tag=True):
    """JSON that follows a schema (JSON text); None is any JSON. It is an object unless `any`."""

    schema: str | None
    any: bool = False


class FreeText(Struct, frozen=True, tag=True):
    """Any text up to the first `end`, which is written too.

    avoid: what may not stand in it. pattern: a regular expression for all of it. least, most: of its characters.
    """

    end: str
    avoid: tuple[str, ...] = ()
    pattern: str | None = None
    min_length: int = 0
    max_length: int | None = None


class Alternation(Struct, frozen=True, tag=True):
    options: tuple[tuple[SyntaxPiece, ...], ...]


class OptionalPieces(Struct, frozen=True, tag=True):
    """Written or left out."""

    pieces: tuple[SyntaxPiece, ...]


class RepeatedPieces(Struct, frozen=True, tag=True):
    """Any number of times, even none."""

    pieces: tuple[SyntaxPiece, ...]


SyntaxPiece = LiteralText | JsonValue | FreeText | Alternation | OptionalPieces | RepeatedPieces


class ReasoningSyntax(Struct, frozen=True):
    """begin, end: the marks around reasoning. after: text that the template puts behind the end mark.

    answer: what stands before an answer that is text, wherever there is one.
    """

    begin: str
    end: str
    end_suffix: str = ""
    answer_prefix: str = ""


class ParseContext(Struct, frozen=True):
    """What a parser may know of its request.

    prompt_tail: the end of the rendered prompt, from where the assistant's turn begins, so that a parser knows
    what the template has already opened. tools: the ones that may be called; text that calls another one
    stays text. new_id: makes the id of a call.
    """

    prompt_tail: str
    tools: tuple[Tool, ...]
    new_id: Callable[[], str]


class Parser(Protocol):
    """The state of one choice. One entry: there is no whole-text twin that could disagree with it.

    TextDelta in: what it means out (possibly nothing yet). ChoiceFinished in: everything held back, then the
    ChoiceFinished, with the tokens that no event has carried. Any other event passes through. Law: neither the
    cutting of the text nor the choice of where events end changes the folded result, and no token is lost.
    """

    def feed(self, event: Event) -> list[Event]: ...


class ReasoningFormat(Protocol):
    """Tells reasoning from text."""

    @property
    def syntax(self) -> ReasoningSyntax: ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must reach the parser even if they are control tokens."""
        ...

    def create_parser(self, context: ParseContext) -> Parser: ...


class ToolFormat(Protocol):
    """Tells tool calls from text. markers: texts that must reach the parser even if they are control tokens.

    openers: those of them that begin a call and nothing else; where no tool may be called they may not be said.
    """

    @property
    def markers(self) -> tuple[str, ...]: ...

    @property
    def call_openers(self) -> tuple[str, ...]: ...

    def create_parser(self, context: ParseContext) -> Parser: ...

    def build_call_syntax(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        """The one form in which a call of this tool may be written when it is enforced. Raises Unsupported."""
        ...

    @property
    def section_delimiters(self) -> tuple[str, str]:
        """What stands before the first call of an answer, and behind the last."""
        ...

    @property
    def call_separator(self) -> str:
        """What separates two calls of one answer."""
        ...

    @property
    def has_unmarked_calls(self) -> bool:
        """No mark begins a call: it is one only where nothing but reasoning precedes it."""
        ...


def get_tool_names(tools: Sequence[Tool]) -> frozenset[str]:
    return frozenset(tool.name for tool in tools)
