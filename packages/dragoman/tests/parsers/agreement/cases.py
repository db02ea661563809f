"""Model outputs, vLLM's recorded parses of them, and Dragoman's own parses.

The texts are inputs of the parser tests of vLLM 0.33.0 (Apache-2.0), up to 1,500
characters; each names its test file. vLLM's parses were recorded by `python -m
tests.parsers.agreement.recorder`, once of the whole text and once token by token. If
the two differ, either is accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.core.events import TextDelta, Token
from dragoman.core.message import FunctionTool
from dragoman.core.syntax import Parser, ToolFormat
from dragoman.parsers import registry
from dragoman.parsers.call_families import CALL_FAMILIES
from dragoman.parsers.reasoning_families import REASONING_FAMILIES
from dragoman.parsers.think import ThinkFormat

from ..parsing import Shape, context, fold, parse, shape

HERE = Path(__file__).parent
_MARK = re.compile(r"<[^<>\s=\"]+>|\[/?[A-Z_]+\]|◁/?think▷")
_CONTROL = re.compile(
    r"<\|[^<>|\s]+\|?>|<\uff5c[^<>\uff5c\s]+\uff5c>|<reserved_\d+>|<[be]os>|</?s>"
)
"""Control tokens. The engine removes those that are not markers of the format before
the parser.
"""
ONE_PARSER_FAMILIES = frozenset({"gemma4", "kimi_k3", "minimax_m2"})
"""Families whose call parser in vLLM also parses the reasoning, and drops it."""
_MORE_MARKS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<tool_response>",
    "</tool_response>",
    "<|tool_response>",
)


class Reading(Struct, frozen=True, omit_defaults=True):
    """The parse of a text. calls: names and arguments. error: the exception of a parser
    that failed.
    """

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    error: str = ""

    @property
    def meaning(self) -> tuple[object, ...]:
        """The value to compare: without white space around text, and with canonical
        JSON.
        """
        calls = tuple((name, _canonical(arguments)) for name, arguments in self.calls)
        return self.reasoning.strip(), self.text.strip(), calls, self.error


class DeclaredTool(Struct, frozen=True):
    """parameters: a JSON Schema, or null where the test declared none."""

    name: str
    parameters: object = None


class Case(Struct, frozen=True, omit_defaults=True):
    """A text and vLLM's parse of it.

    template: arguments of the chat template.
    opened: the template opened the reasoning.
    lacks: markers that its vocabulary does not have.
    streamed: vLLM's parse token by token, if it differs from that of the whole text.
    """

    family: str
    text: str
    source: str
    tools: tuple[DeclaredTool, ...] = ()
    template: dict[str, object] = {}
    opened: bool = False
    lacks: tuple[str, ...] = ()
    whole: Reading = Reading()
    streamed: Reading | None = None

    @property
    def id(self) -> str:
        tools = [[tool.name, tool.parameters] for tool in self.tools]
        key = json.dumps([self.family, self.text, tools, self.template, self.opened, self.lacks])
        return f"{self.family}-{sha256(key.encode()).hexdigest()[:8]}"

    @property
    def marks(self) -> tuple[str, ...]:
        """The markers of its vocabulary."""
        return tuple(mark for mark in find_marks() if mark not in self.lacks)

    @property
    def readings(self) -> tuple[Reading, ...]:
        return (self.whole,) if self.streamed is None else (self.whole, self.streamed)


def load_cases(kind: str) -> list[Case]:
    """kind: tools or reasoning."""
    lines = (HERE / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    return [msgspec.json.decode(line, type=Case) for line in lines]


class Difference(Struct, frozen=True):
    """Texts that Dragoman deliberately parses differently from vLLM, as listed in
    docs/parsers.md.

    kind: tools or reasoning. text: what the cases have in common. cases: their ids.
    """

    kind: str
    text: str
    vllm: str
    dragoman: str
    why: str
    cases: tuple[str, ...]


def load_differences() -> list[Difference]:
    return msgspec.json.decode((HERE / "differences.json").read_bytes(), type=list[Difference])


def save_cases(kind: str, cases: Sequence[Case]) -> None:
    lines = (msgspec.json.encode(case).decode() + "\n" for case in cases)
    (HERE / f"{kind}.jsonl").write_text("".join(lines), encoding="utf-8")


@cache
def find_marks() -> tuple[str, ...]:
    """Return the markers that are single tokens in the vocabulary of the comparison."""
    texts: list[str] = [*_MORE_MARKS]
    for family in CALL_FAMILIES:
        delimiters = family.delimiters
        texts += (*delimiters.call_openers, *delimiters.closers, *delimiters.fillers)
        found = registry.find_tool_format(family.names[0])
        assert found is not None
        texts += (
            mark
            for mark in found.markers
            if mark.startswith(("<|", "<\uff5c", "[", "<arg", "</arg", "<tool"))
        )
    for family in REASONING_FAMILIES:
        texts += (family.begin_marker.strip(), family.end_marker)
    return tuple(sorted({mark for text in texts for mark in _MARK.findall(text) if mark}))


@cache
def _token_pattern() -> re.Pattern[str]:
    marks = (re.escape(mark) for mark in sorted(find_marks(), key=len, reverse=True))
    return re.compile("|".join([*marks, _CONTROL.pattern, "(?s:.)"]))


def split_tokens(text: str) -> list[str]:
    """Split a text into markers, control tokens and single characters."""
    return [found.group() for found in _token_pattern().finditer(text)]


def read_tools(case: Case) -> tuple[Reading, ...]:
    """Parse a case with this package, whole and token by token. All tools that vLLM
    found are declared.
    """
    found, tools = _find_tool_format(case)

    def build() -> Parser:
        return registry.create_parser(None, found, context(*tools))

    return _read(build, case.text, found.markers)


def read_tools_behind_reasoning(case: Case) -> Iterator[Reading]:
    """Parse a case of a vLLM parser that reads both reasoning and calls, and drops the
    reasoning.

    Both of this package's parsers run, once with reasoning opened by the template and
    once without.
    """
    if case.family not in ONE_PARSER_FAMILIES:
        return
    reasoning = registry.find_reasoning_format(case.family, case.marks)
    (found, tools) = _find_tool_format(case)
    assert reasoning is not None

    for beginning in ("", reasoning.syntax.begin):

        def build(tail: str = f"assistant\n{beginning}") -> Parser:
            return registry.create_parser(reasoning, found, context(*tools, tail=tail))

        whole, _ = _read(build, case.text, (*found.markers, *reasoning.markers))
        yield msgspec.structs.replace(whole, reasoning="")


def _find_tool_format(case: Case) -> tuple[ToolFormat, list[FunctionTool]]:
    """Return the format of a case's family, and the declared tools."""
    declared = {tool.name: tool.parameters for tool in case.tools}
    called = (name for reading in case.readings for name, _ in reading.calls)
    names = dict.fromkeys([*declared, *called, "a_tool_that_is_not_called"])
    tools = [
        FunctionTool(name, None, None if declared.get(name) is None else json.dumps(declared[name]))
        for name in names
        if name
    ]

    found = registry.find_tool_format(case.family, case.marks)
    assert found is not None
    return found, tools


def read_reasoning(case: Case) -> tuple[Reading, ...]:
    found = registry.find_reasoning_format(case.family, case.marks)
    assert found is not None
    tools = (
        registry.find_tool_format(case.family, case.marks)
        if case.family in registry.TOOL_FACTORIES
        else None
    )

    def build() -> Parser:
        tail = f"assistant\n{found.syntax.begin}" if case.opened else "assistant\n"
        if isinstance(found, ThinkFormat) and tools is not None:
            return found.create_parser(context(tail=tail), tools.call_openers)
        return found.create_parser(context(tail=tail))

    return _read(build, case.text, (*found.markers, *(tools.markers if tools is not None else ())))


def _read(build: Callable[[], Parser], text: str, markers: Collection[str]) -> tuple[Reading, ...]:
    marks = find_marks()
    lines = [
        piece
        for piece in split_tokens(text)
        if not _CONTROL.fullmatch(piece) or any(piece in one for one in markers)
    ]
    tokens = [Token(index, piece, special=piece in marks) for index, piece in enumerate(lines)]
    whole = [TextDelta(0, "".join(lines), tuple(tokens))] if lines else []
    each = [TextDelta(0, token.text, (token,)) for token in tokens]
    return tuple(_as_reading(shape(fold(parse(build(), deltas)))) for deltas in (whole, each))


def _as_reading(parts: Shape) -> Reading:
    return Reading(
        "".join(part[1] for part in parts if part[0] == "text"),
        tuple((part[1], part[2]) for part in parts if part[0] == "call"),
        "".join(part[1] for part in parts if part[0] == "reasoning"),
    )


def _canonical(arguments: str) -> str:
    """Return JSON in a canonical form: keys are sorted, and 5.0 becomes 5."""
    try:
        return json.dumps(json.loads(arguments, parse_float=_read_number), sort_keys=True)
    except ValueError:
        return arguments.strip()


def _read_number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() else number
