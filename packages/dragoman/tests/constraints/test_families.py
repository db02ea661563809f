"""The parser of a family reads every output that the family's grammar allows as calls
that follow their schemas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.constraints.conftest import EOS
from tests.constraints.walks import list_allowed, text
from tests.parsers.parsing import context, fold, parse, tool_format
from tests.prompts import vocabularies

from dragoman.constraints.grammar_compiler import Compiler
from dragoman.constraints.response_grammar import CallForm, ToolCallRules, compose_grammar
from dragoman.core.events import TextDelta
from dragoman.core.matcher import Matcher
from dragoman.core.message import CustomTool, FunctionTool, ToolCall
from dragoman.core.syntax import (
    Alternation,
    FreeText,
    LiteralText,
    OptionalPieces,
    RepeatedPieces,
    SyntaxPiece,
)
from dragoman.parsers.call_families import CALL_FAMILIES
from dragoman.parsers.harmony import HARMONY_TOOL_NAMES
from dragoman.prompts.hf_tokenizer import HfTokenizer

Schema = dict[str, Any]
DEFS = {
    "Colour": {"type": "string", "enum": ["red", "green"]},
    "Name": {"type": "string", "maxLength": 5},
    "Size": {"type": "object", "properties": {"n": {"type": "integer"}}},
}
PROPERTIES: list[Schema] = [
    {"type": "string"},
    {"type": "string", "enum": ["a b", "c<d"]},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "pattern": "^[a-z]+$"},
    {"type": "string", "pattern": "^[0-9]"},
    {"type": "string", "pattern": "[0-9]$", "maxLength": 4},
    {"type": "integer", "minimum": 3, "maximum": 40},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "null"},
    {"const": "fixed"},
    {"enum": ["x", 7, None]},
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {"anyOf": [{"type": "string", "enum": ["on"]}, {"type": "boolean"}]},
    {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    {
        "type": "object",
        "properties": {"k": {"type": "string", "maxLength": 4}},
        "additionalProperties": False,
    },
    {"$ref": "#/$defs/Colour"},
    {"allOf": [{"$ref": "#/$defs/Size"}]},
    {"description": "anything"},
    {
        "anyOf": [{"type": "string"}, {"type": "integer"}],
        "maxLength": 3,
        "minimum": 5,
        "maximum": 9,
    },
    {"enum": ["a", "bbbb", 7, 1, None], "maxLength": 2, "minimum": 3},
    {"$ref": "#/$defs/Name", "minLength": 3},
    {
        "type": "array",
        "items": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        "maxItems": 2,
    },
    {
        "type": "array",
        "items": {"type": "array", "items": {"enum": ["x", 1]}, "maxItems": 1},
        "minItems": 1,
    },
    {
        "type": "object",
        "properties": {
            "k": {"type": "array", "items": {"enum": ["p", "q"]}, "maxItems": 3},
            "n": {"type": "boolean"},
        },
        "required": ["n"],
        "additionalProperties": False,
    },
]


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    names = draw(st.lists(st.sampled_from(["city", "x", "max_n", "flag"]), unique=True, max_size=3))
    properties = {name: draw(st.sampled_from(PROPERTIES)) for name in names}
    required = [name for name in names if draw(st.booleans())]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        "$defs": DEFS,
    }


def urges(pieces: Sequence[SyntaxPiece]) -> list[str]:
    """Return texts that end an answer, which random sampling would hardly produce."""
    found: list[str] = []
    for piece in pieces:
        match piece:
            case FreeText(end):
                found.append(end)
            case Alternation(options):
                found.extend(end for option in options for end in urges(option))
            case OptionalPieces(inner) | RepeatedPieces(inner):
                found.extend(urges(inner))
            case _:
                pass
    return found


def walk(
    matcher: Matcher, tokenizer: HfTokenizer, random: Random, marks: Sequence[str], most: int = 400
) -> list[int] | None:
    """Sample a random answer that prefers tokens that end it."""
    eos = tokenizer.special_tokens[EOS]
    ids = list[int]()
    planned = list[int]()
    ends = [*marks, '"', "}", "]", '"}', "ab"]
    while len(ids) < most:
        choices = list_allowed(matcher, tokenizer.vocab_size)
        assert choices, "the mask allows nothing"
        if eos in choices and (len(choices) == 1 or random.random() < 0.7):
            assert matcher.advance(eos)
            return ids
        if not planned and random.random() < 0.2 + len(ids) / 100:
            planned = list(tokenizer.encode(random.choice(ends), special=True))
        if not planned or planned[0] not in choices:
            planned = [random.choice([id for id in choices if id != eos])]
        ids.append(planned.pop(0))
        assert matcher.advance(ids[-1])
    return None


@cache
def vocabulary(name: str, *, tokens: bool) -> tuple[HfTokenizer, Compiler]:
    """A vocabulary in which the markers of this family are tokens, or one in which none
    are.
    """
    marks = (
        [mark for mark in tool_format(name).markers if len(mark) > 3 and mark[0] in "<["]
        if tokens
        else []
    )
    tokenizer = vocabularies.build_tokenizer(
        vocabularies.byte_level_data(("<|im_start|>", EOS, *marks))
    )
    return tokenizer, Compiler(tokenizer, [tokenizer.special_tokens[EOS]])


def check(
    name: str, tools: Sequence[FunctionTool | CustomTool], seed: int, *, tokens: bool
) -> bool:
    """Return whether the walk ended; its text must be calls that follow their schemas."""
    tokenizer, compiler = vocabulary(name, tokens=tokens)
    format = tool_format(name, tokenizer.special_tokens)
    forms = tuple(CallForm(format.build_call_syntax(tool)) for tool in tools)
    calls = ToolCallRules(
        forms,
        format.call_separator,
        True,
        True,
        format.section_delimiters,
        format.has_unmarked_calls,
    )
    matcher = compiler.compile(
        compose_grammar(tokenizer.special_tokens, calls=calls)
    ).build_matcher()
    marks = urges([piece for form in forms for piece in form.pieces])
    ids = walk(matcher, tokenizer, Random(seed), [*marks, format.section_delimiters[1] or " "])
    if ids is None:
        return False
    answer = text(tokenizer, ids)
    parts = fold(parse(format.create_parser(context(*tools)), [TextDelta(0, answer)])).parts
    assert parts, answer
    for part in parts:
        assert isinstance(part, ToolCall), (answer, part)
        tool = next(tool for tool in tools if tool.name == part.name)
        if isinstance(tool, FunctionTool):
            value = json.loads(part.arguments, parse_float=finite)
            jsonschema_rs.validate(json.loads(tool.parameters or "{}"), value)
        elif tool.definition is not None:
            assert re.fullmatch(tool.definition, part.arguments, re.DOTALL), (answer, part)
    return True


def finite(number: str) -> float:
    """The validator does not accept numbers that are too large for a float."""
    return max(-1e300, min(float(number), 1e300))


FAMILIES = [*(family.names[0] for family in CALL_FAMILIES), HARMONY_TOOL_NAMES[0]]


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@given(st.sampled_from(FAMILIES), schemas(), schemas(), st.integers(0, 1_000_000))
def test_tool_parser_reads_random_constrained_output(
    tokens: bool, name: str, first: Schema, second: Schema, seed: int
):
    tools = [
        FunctionTool("f", None, json.dumps(first)),
        FunctionTool("get_weather", None, json.dumps(second)),
    ]
    check(name, tools, seed, tokens=tokens)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_grammar_random_walk_terminates(name: str):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["city"],
    }
    tools = [FunctionTool("f", None, json.dumps(schema)), FunctionTool("any"), CustomTool("patch")]
    for tokens in (True, False):
        assert any(check(name, tools, seed, tokens=tokens) for seed in range(12))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("pattern", ['[ab]{2,5}|"c\\\\?"', r"(x|y)+ \$"])
def test_custom_tool_input_matches_pattern(name: str, pattern: str):
    tools = [CustomTool("patch", None, "regex", pattern)]
    for tokens in (True, False):
        assert any([check(name, tools, seed, tokens=tokens) for seed in range(5)])


@pytest.mark.parametrize("name", FAMILIES)
def test_call_syntax_starts_with_literal_text(name: str):
    first = tool_format(name).build_call_syntax(FunctionTool("f"))[0]
    assert isinstance(first, LiteralText)
