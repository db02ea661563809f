"""Run a parser over an answer that is split into deltas, and fold its events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.event_grammar import check_events
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    Usage,
)
from dragoman.core.message import CustomTool, FunctionTool, Reasoning, Text, Tool, ToolCall
from dragoman.core.reply import Choice, ReplyBuilder
from dragoman.core.syntax import ParseContext, Parser, ToolFormat
from dragoman.parsers import registry

SPECIAL = ("<think>", "</think>", "<tool_call>", "</tool_call>")
END = Token(2, "<|im_end|>", special=True)
Make = Callable[[], Parser]
Shape = list[tuple[str, ...]]


def context(*tools: str | Tool, tail: str = "<|im_start|>assistant\n") -> ParseContext:
    built = (FunctionTool(tool) if isinstance(tool, str) else tool for tool in tools)
    count = iter(range(1_000_000))
    return ParseContext(tail, tuple(built), lambda: f"call_{next(count)}")


PATCH = CustomTool("patch")


def tool_format(name: str, added: Collection[str] = ()) -> ToolFormat:
    found = registry.find_tool_format(name, added)
    assert found is not None
    return found


def token(text: str) -> Token:
    return Token(
        SPECIAL.index(text) + 3 if text in SPECIAL else 100 + len(text),
        text,
        special=text in SPECIAL,
    )


def deltas(pieces: Iterable[str]) -> list[TextDelta]:
    """Return deltas of one token each."""
    return [TextDelta(0, piece, (token(piece),)) for piece in pieces]


def parse(
    parser: Parser, events: Sequence[TextDelta], reason: FinishReason = FinishReason.STOP
) -> list[Event]:
    """Return the parser's events, which must be a legal stream."""
    raw = [Started(1), *events, ChoiceFinished(0, reason, None, (END,)), Finished(Usage(1, 1))]
    out = list(check_events(event for one in raw for event in parser.feed(one)))
    for event in out:
        match event:
            case TextDelta(_, text) | ReasoningDelta(_, text) | ToolCallDelta(_, text):
                assert text, "an empty delta"
            case _:
                pass
    return out


def fold(events: Iterable[Event]) -> Choice:
    folded = ReplyBuilder()
    for event in events:
        folded.feed(event)
    (choice,) = folded.build().choices
    return choice


def plain(choice: Choice) -> list[Token]:
    """Return all tokens, without the fields that the parsers set."""
    return [replace(one, markup=False) for one in choice.tokens]


def shape(choice: Choice) -> Shape:
    """Return the parts without their tokens."""
    out: Shape = []
    for part in choice.parts:
        match part:
            case Text(text):
                out.append(("text", text))
            case Reasoning(text):
                out.append(("reasoning", text))
            case ToolCall(_, name, arguments, _, custom):
                out.append(("custom" if custom else "call", name, arguments))
            case _:
                raise AssertionError(part)
    return out


def answer(parser: Parser, text: str, reason: FinishReason = FinishReason.STOP) -> Shape:
    """Parse the whole text, one character per delta and without tokens."""
    return shape(fold(parse(parser, [TextDelta(0, char) for char in text], reason)))


def cut(draw: Callable[[st.SearchStrategy[int]], int], text: str) -> list[str]:
    pieces: list[str] = []
    while text:
        size = draw(st.integers(1, min(len(text), 9)))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def regroup(
    draw: Callable[[st.SearchStrategy[int]], int], tokens: Sequence[Token]
) -> list[TextDelta]:
    """Return the same tokens in other deltas. A token that is split belongs to its last
    piece.
    """
    text = "".join(one.text for one in tokens)
    ends: list[int] = []
    for one in tokens:
        ends.append((ends[-1] if ends else 0) + len(one.text))
    out: list[TextDelta] = []
    at = 0
    taken = 0
    for piece in cut(draw, text):
        at += len(piece)
        mine = [one for one, end in zip(tokens[taken:], ends[taken:], strict=True) if end <= at]
        taken += len(mine)
        out.append(TextDelta(0, piece, tuple(mine)))
    return out
