"""Calls that models get wrong: broken arguments, a thought that was not ended, a name without arguments."""

from __future__ import annotations

import json

import pytest

from dragoman.core.events import FinishReason, TextDelta, Token
from dragoman.core.message import FunctionTool
from dragoman.core.syntax import Parser
from dragoman.parsers import registry

from .running import Shape, answer, context, fold, parse, shape, tool_format

KIMI = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>")
HERMES = ("<tool_call>", "</tool_call>")
ARGUMENT = "<|tool_call_argument_begin|>"


def reader(tools: str, reasoning: str | None = None, added: tuple[str, ...] = (), tail: str = "") -> Parser:
    told = registry.find_reasoning_format(reasoning, added) if reasoning else None
    return registry.create_parser(told, tool_format(tools, added), context("bad", "good", tail=tail))


def read(parser: Parser, pieces: list[str], marks: tuple[str, ...]) -> Shape:
    """The pieces are tokens; each is fed as a delta of its own, all of them must say the same as one delta."""
    return shape(fold(parse(parser, [TextDelta(0, one, (Token(1, one, special=one in marks),)) for one in pieces])))


BROKEN = [
    (
        "kimi_k2",
        [
            KIMI[0],
            KIMI[2],
            "functions.bad:0",
            ARGUMENT,
            '{"city": "Beijing"',
            KIMI[3],
            KIMI[2],
            "functions.good:1",
            ARGUMENT,
            '{"city": "Rome"}',
            KIMI[3],
            KIMI[1],
        ],
        '{"city": "Beijing"',
    ),
    (
        "kimi_k2",
        [
            KIMI[0],
            KIMI[2],
            "functions.bad:0",
            ARGUMENT,
            '{"city": "Bei',
            "jing",
            KIMI[3],
            KIMI[2],
            "functions.good:1",
            ARGUMENT,
            '{"city": "Rome"}',
            KIMI[3],
            KIMI[1],
        ],
        '{"city": "Beijing',
    ),
    (
        "hermes",
        [
            HERMES[0],
            '{"name": "bad", "arguments": {"city": "Bei',
            HERMES[1],
            HERMES[0],
            '{"name": "good", "arguments": {"city": "Rome"}}',
            HERMES[1],
        ],
        '{"city": "Bei',
    ),
    (
        "granite-20b-fc",
        [
            "<function_call>",
            ' {"name": "bad", "arguments": {"city": 1',
            "<function_call>",
            ' {"name": "good", "arguments": {"city": "Rome"}}',
        ],
        '{"city": 1',
    ),
]


@pytest.mark.parametrize(("name", "pieces", "broken"), BROKEN)
def test_a_mark_ends_broken_arguments(name: str, pieces: list[str], broken: str):
    added = (*KIMI, *HERMES, ARGUMENT, "<function_call>")
    assert read(reader(name, added=added), pieces, added) == [
        ("call", "bad", broken),
        ("call", "good", '{"city": "Rome"}'),
    ]


@pytest.mark.parametrize(("name", "pieces", "broken"), [BROKEN[0], BROKEN[3]])
def test_so_it_does_without_a_vocabulary_where_no_json_has_it(name: str, pieces: list[str], broken: str):
    assert answer(reader(name), "".join(pieces)) == [("call", "bad", broken), ("call", "good", '{"city": "Rome"}')]


def test_a_spelled_mark_within_a_string_is_a_part_of_it():
    text = ["<tool_call>", '{"name": "bad", "arguments": {"x": "</', "tool_call", '>"}}', "</tool_call>"]
    assert read(reader("hermes", added=HERMES), text, HERMES) == [("call", "bad", '{"x": "</tool_call>"}')]


UNENDED = [
    ("qwen3", "hermes", '<tool_call>{"name": "good", "arguments": {}}</tool_call>'),
    ("qwen3", "qwen3_coder", "<tool_call>\n<function=good>\n</function>\n</tool_call>"),
    ("kimi_k2", "kimi_k2", f"{KIMI[0]}{KIMI[2]}functions.good:0{ARGUMENT}{{}}{KIMI[3]}{KIMI[1]}"),
    ("glm45", "glm45", "<tool_call>good\n</tool_call>"),
    ("minimax_m2", "minimax_m2", '<minimax:tool_call>\n<invoke name="good">\n</invoke>\n</minimax:tool_call>'),
]


@pytest.mark.parametrize(("reasoning", "tools", "call"), UNENDED)
def test_a_call_ends_an_open_thought(reasoning: str, tools: str, call: str):
    read = [("reasoning", "I must look."), ("call", "good", "{}")]
    assert answer(reader(tools, reasoning, tail="<think>"), "I must look.\n" + call) == read
    assert answer(reader(tools, reasoning), "<think>I must look.\n" + call) == read


def test_a_thought_may_speak_of_marks_that_the_vocabulary_has():
    pieces = ["<think>", "Use <", "tool_call", ">.", "</think>", "Yes"]
    added = ("<think>", "</think>", *HERMES)
    assert read(reader("hermes", "qwen3", added), pieces, added) == [("reasoning", "Use <tool_call>."), ("text", "Yes")]


def test_without_tools_a_thought_goes_on():
    told = registry.find_reasoning_format("qwen3")
    parser = registry.create_parser(told, tool_format("hermes"), context(tail="<think>"))
    assert answer(parser, "a <tool_call> b</think>c") == [("reasoning", "a <tool_call> b"), ("text", "c")]


def test_a_name_alone_is_a_call_without_arguments():
    assert answer(reader("mistral"), "[TOOL_CALLS]good") == [("call", "good", "{}")]
    assert answer(reader("mistral"), "[TOOL_CALLS]unknown") == [("text", "[TOOL_CALLS]unknown")]
    cut = answer(reader("mistral"), "[TOOL_CALLS]good", FinishReason.LENGTH)
    assert cut == [("text", "[TOOL_CALLS]good")], "it may have been the beginning of another name"


def test_types_that_are_no_json_schema_are_what_they_mean():
    schema = {
        "properties": {"a": {"type": "float"}, "b": {"type": "double"}, "c": {"type": "dict"}, "d": {"type": "str"}}
    }
    tool = FunctionTool("good", None, json.dumps(schema))
    text = "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n"
        for name, value in (("a", "1.5"), ("b", "2"), ("c", '{"x": 1}'), ("d", "3"))
    )
    told = answer(
        tool_format("qwen3_coder").create_parser(context(tool)),
        f"<tool_call>\n<function=good>\n{text}</function>\n</tool_call>",
    )
    assert told == [("call", "good", '{"a": 1.5, "b": 2, "c": {"x": 1}, "d": "3"}')]


def test_mimos_strings_are_verbatim():
    text = "<tool_call>\n<function=good>\n<parameter=a>\n x\n</parameter>\n</function>\n</tool_call>"
    assert answer(reader("mimo"), text) == [("call", "good", '{"a": "\\n x\\n"}')]
    assert answer(reader("qwen3_coder"), text) == [("call", "good", '{"a": " x"}')]


@pytest.mark.parametrize("name", ["lfm2", "pythonic"])
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("a={'x', 'y'}", {"a": ["x", "y"]}),
        ("a={1, 2}", {"a": [1, 2]}),
        ("a=[{'x'}], b=2", {"a": [["x"]], "b": 2}),
        ("a={}", {"a": {}}),
        ("a={'x': {'y'}}", {"a": {"x": ["y"]}}),
        ("""a='say "hi"'""", {"a": 'say "hi"'}),
        ("a='it's', b=1", {"a": "it's", "b": 1}),
        ("a=['it's', 'x']", {"a": ["it's", "x"]}),
    ],
)
def test_python_that_is_no_json_becomes_json(name: str, written: str, arguments: object):
    begin, end = ("<|tool_call_start|>", "<|tool_call_end|>") if name == "lfm2" else ("", "")
    ((kind, called, told),) = answer(reader(name), f"{begin}[good({written})]{end}")
    assert (kind, called, json.loads(told)) == ("call", "good", arguments)


@pytest.mark.parametrize(
    ("name", "empty"), [("kimi_k2", KIMI[0] + KIMI[1]), ("jamba", "<tool_calls>[]</tool_calls>"), ("deepseek_v31", "")]
)
def test_a_section_without_calls_is_no_text(name: str, empty: str):
    assert answer(reader(name), f"Yes.{empty}") == [("text", "Yes.")]
