"""Calls of every family with a slip: a piece of text that a model inserts by mistake.

A call is `get_weather` with three arguments, as in the transcripts in golden/, followed
by a call of `note`. A slip stands at any position, or between two arguments.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from dragoman.core.events import TextDelta, Token
from dragoman.core.json_types import JsonValue
from dragoman.core.message import FunctionTool, Tool
from dragoman.core.syntax import ToolFormat
from dragoman.parsers.call_families import CALL_FAMILIES
from dragoman.parsers.harmony import HARMONY_TOOL_NAMES
from dragoman.parsers.pythonic_calls import PythonicSyntax
from dragoman.parsers.xml_calls import XmlTagSyntax

from .agreement.cases import find_marks, split_tokens
from .goldens import TOOLS, golden
from .parsing import Shape, context, fold, parse, shape, tool_format

FAMILIES = (*(family.names[0] for family in CALL_FAMILIES), HARMONY_TOOL_NAMES[0])
TAG_FAMILIES = tuple(
    family.names[0] for family in CALL_FAMILIES if isinstance(family.syntax, XmlTagSyntax)
)
PYTHONIC_FAMILIES = tuple(
    family.names[0] for family in CALL_FAMILIES if isinstance(family.syntax, PythonicSyntax)
)
Case = TypeVar("Case", "Slip", "Quote")
ARGUMENTS = {"city": "Paris", "days": 3, "metric": True}
STRAY_TAGS = (
    "</parameter>",
    "</function>",
    "</invoke>",
    "</arg_value>",
    "</arg_key>",
    "</param>",
    "<br/>",
    "<!-- next -->",
)
WORDS = (" ok?", "\nand then\n", "```", "\n\n\n", " \t", "é", "<", "</", "<|", "&amp;")
PUNCTUATION = ('"', "'", "{", "}", "[", "]", "(", ")", ",", ":", "=", "\\", "null", '{"x": 1}')


class Slip(Struct, frozen=True):
    """A text with a slip.

    family: the name of the family.
    inserted: the slip.
    at: where it was inserted.
    raw: the whole text.
    """

    family: str
    inserted: str
    at: int
    raw: str


class Quote(Struct, frozen=True):
    """A well-formed call whose first argument quotes a tag.

    value: the argument.
    raw: the whole text.
    """

    family: str
    tag: str
    value: JsonValue
    raw: str


def read_transcript(family: str) -> tuple[str, str]:
    """Return a transcript with the end of its prompt."""
    case = golden(family)[0]
    return case.raw, case.tail


def list_slips(family: str) -> tuple[str, ...]:
    """Return the texts to insert: those of all families, and the markers of this one."""
    return (*STRAY_TAGS, *WORDS, *PUNCTUATION, *dict.fromkeys(tool_format(family).markers))


def insert_anywhere(family: str) -> Iterator[Slip]:
    raw, _ = read_transcript(family)
    for inserted in list_slips(family):
        for at in range(len(raw) + 1):
            yield Slip(family, inserted, at, raw[:at] + inserted + raw[at:])


def insert_between_arguments(family: str) -> Iterator[Slip]:
    """Yield slips before the second and third argument, and behind the last one."""
    raw, _ = read_transcript(family)
    for at in find_gaps(family):
        for inserted in (*STRAY_TAGS, *WORDS[:5], *list_own_ends(family)):
            yield Slip(family, inserted, at, raw[:at] + inserted + raw[at:])


def list_own_ends(family: str) -> tuple[str, ...]:
    """Return the tags of this family that end a key or a value."""
    syntax = next(one.syntax for one in CALL_FAMILIES if one.names[0] == family)
    if not isinstance(syntax, XmlTagSyntax):
        return ()
    return tuple(filter(None, (syntax.value_end_tag, syntax.value_tag)))


def find_gaps(family: str) -> list[int]:
    """Return the positions between the arguments of the first call."""
    raw, _ = read_transcript(family)
    syntax = next(one.syntax for one in CALL_FAMILIES if one.names[0] == family)
    if isinstance(syntax, XmlTagSyntax):
        keys = [found.start() for found in re.finditer(re.escape(syntax.key_tag), raw)][1:3]
        return [*keys, raw.index(syntax.end_tag)]
    return [raw.index(name) for name in ("days", "metric")]


def quote_tags(family: str) -> Iterator[Quote]:
    """Yield well-formed calls with a value that quotes a tag of the family."""
    raw, _ = read_transcript(family)
    syntax = next(one.syntax for one in CALL_FAMILIES if one.names[0] == family)
    assert isinstance(syntax, XmlTagSyntax)
    patterns = syntax.compile((), ()).patterns
    key = syntax.key_tag + "days" + syntax.key_end_tags[0][0]
    found = tool_format(family)
    text_ends = [end for end in patterns.forbidden_in_values if not end.startswith("\n")]
    for tag in dict.fromkeys((key, *found.markers)):
        for text in (f"see {tag} there", f"{tag} is one", f"it is {tag}"):
            if not any(end in text for end in text_ends):
                yield Quote(family, tag, text, raw.replace("Paris", text, 1))
            values: tuple[JsonValue, ...] = [text], {"a": text, "b": [1, text]}
            for value in values:
                kind = "object" if isinstance(value, dict) else "array"
                typed = raw.replace('string="true"', 'string="false"', 1)
                typed = typed.replace('type="string"', f'type="{kind}"', 1)
                yield Quote(family, tag, value, typed.replace("Paris", write_value(value), 1))


def write_value(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_quote(quote: Quote, cuts: Sequence[int] = (), *, has_tokens: bool = False) -> Shape:
    """Parse a call that quotes a tag. As tokens, the quoted tag is one of plain text."""
    is_object = isinstance(quote.value, dict)
    kind = "string" if isinstance(quote.value, str) else "object" if is_object else "array"
    schema = {"city": {"type": kind}, "days": {"type": "integer"}, "metric": {"type": "boolean"}}
    tool = FunctionTool("get_weather", None, json.dumps({"properties": schema}))
    tools = (tool, *TOOLS[1:])
    if not has_tokens:
        ends = [*cuts, len(quote.raw)]
        pieces = [quote.raw[at:end] for at, end in zip([0, *ends], ends, strict=False)]
        deltas = [TextDelta(0, piece) for piece in pieces if piece]
        return _read(quote.family, tool_format(quote.family), deltas, tools)
    written = write_value(quote.value)
    before, _, after = quote.raw.partition(written)
    marks = frozenset(find_marks())
    pieces = [*split_tokens(before), *written, *split_tokens(after)]
    deltas = [
        TextDelta(0, piece, (Token(number, piece, special=piece in marks),))
        for number, piece in enumerate(pieces)
    ]
    return _read(quote.family, tool_format(quote.family, tuple(marks)), deltas, tools)


def read_text(family: str, raw: str, cuts: Sequence[int] = ()) -> Shape:
    """Parse a text without tokens, in deltas that end at these positions."""
    ends = [*cuts, len(raw)]
    pieces = [raw[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    deltas = [TextDelta(0, piece) for piece in pieces if piece]
    return _read(family, tool_format(family), deltas)


def read_tokens(family: str, raw: str) -> Shape:
    """Parse a text with the tokens of a vocabulary that has the markers."""
    marks = frozenset(find_marks())
    deltas = [
        TextDelta(0, piece, (Token(number, piece, special=piece in marks),))
        for number, piece in enumerate(split_tokens(raw))
    ]
    return _read(family, tool_format(family, tuple(marks)), deltas)


def _read(
    family: str, found: ToolFormat, deltas: list[TextDelta], tools: Sequence[Tool] = TOOLS
) -> Shape:
    _, tail = read_transcript(family)
    return shape(fold(parse(found.create_parser(context(*tools, tail=tail)), deltas)))


def choose_cuts(slip: Slip) -> list[int]:
    """Return up to four positions at which the text is cut; the same for each run."""
    chooser = random.Random(f"{slip.family} {slip.inserted} {slip.at}")
    size = len(slip.raw)
    return sorted({chooser.randint(max(slip.at - 8, 0), size) for _ in range(4)})


def is_json_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def sample(cases: Iterator[Case], stride: int) -> list[Case]:
    """Return every case of this stride, in an order that mixes texts and positions."""
    every = list(cases)
    random.Random(len(every)).shuffle(every)
    return every[::stride]
