"""Malformed calls: broken arguments, unterminated reasoning, and names without
arguments.
"""

from __future__ import annotations

import json

import pytest

from dragoman.core.errors import Unsupported
from dragoman.core.events import FinishReason, TextDelta, Token
from dragoman.core.message import FunctionTool
from dragoman.core.syntax import Parser
from dragoman.parsers import registry

from .parsing import Shape, answer, context, fold, parse, shape, tool_format

KIMI = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
)
HERMES = ("<tool_call>", "</tool_call>")
ARGUMENT = "<|tool_call_argument_begin|>"


def reader(
    tools: str, reasoning: str | None = None, added: tuple[str, ...] = (), tail: str = ""
) -> Parser:
    reasoning_format = registry.find_reasoning_format(reasoning, added) if reasoning else None
    return registry.create_parser(
        reasoning_format, tool_format(tools, added), context("bad", "good", tail=tail)
    )


def read(parser: Parser, pieces: list[str], marks: tuple[str, ...]) -> Shape:
    """Parse pieces, each a token. One delta per piece must give the same result as one
    delta of all.
    """
    return shape(
        fold(
            parse(
                parser,
                [TextDelta(0, one, (Token(1, one, special=one in marks),)) for one in pieces],
            )
        )
    )


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
def test_marker_ends_broken_arguments(name: str, pieces: list[str], broken: str):
    added = (*KIMI, *HERMES, ARGUMENT, "<function_call>")
    assert read(reader(name, added=added), pieces, added) == [
        ("call", "bad", broken),
        ("call", "good", '{"city": "Rome"}'),
    ]


@pytest.mark.parametrize(("name", "pieces", "broken"), [BROKEN[0], BROKEN[3]])
def test_marker_without_vocabulary_ends_broken_arguments(name: str, pieces: list[str], broken: str):
    assert answer(reader(name), "".join(pieces)) == [
        ("call", "bad", broken),
        ("call", "good", '{"city": "Rome"}'),
    ]


def test_spelled_marker_inside_string_is_string_text():
    text = [
        "<tool_call>",
        '{"name": "bad", "arguments": {"x": "</',
        "tool_call",
        '>"}}',
        "</tool_call>",
    ]
    assert read(reader("hermes", added=HERMES), text, HERMES) == [
        ("call", "bad", '{"x": "</tool_call>"}')
    ]


UNENDED = [
    ("qwen3", "hermes", '<tool_call>{"name": "good", "arguments": {}}</tool_call>'),
    ("qwen3", "qwen3_coder", "<tool_call>\n<function=good>\n</function>\n</tool_call>"),
    ("kimi_k2", "kimi_k2", f"{KIMI[0]}{KIMI[2]}functions.good:0{ARGUMENT}{{}}{KIMI[3]}{KIMI[1]}"),
    ("glm45", "glm45", "<tool_call>good\n</tool_call>"),
    (
        "minimax_m2",
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="good">\n</invoke>\n</minimax:tool_call>',
    ),
]


@pytest.mark.parametrize(("reasoning", "tools", "call"), UNENDED)
def test_tool_call_ends_open_reasoning(reasoning: str, tools: str, call: str):
    read = [("reasoning", "I must look."), ("call", "good", "{}")]
    assert answer(reader(tools, reasoning, tail="<think>"), "I must look.\n" + call) == read
    assert answer(reader(tools, reasoning), "<think>I must look.\n" + call) == read


def test_spelled_marker_inside_reasoning_is_text():
    pieces = ["<think>", "Use <", "tool_call", ">.", "</think>", "Yes"]
    added = ("<think>", "</think>", *HERMES)
    assert read(reader("hermes", "qwen3", added), pieces, added) == [
        ("reasoning", "Use <tool_call>."),
        ("text", "Yes"),
    ]


def test_reasoning_without_tools_ignores_call_markers():
    reasoning_format = registry.find_reasoning_format("qwen3")
    parser = registry.create_parser(
        reasoning_format, tool_format("hermes"), context(tail="<think>")
    )
    assert answer(parser, "a <tool_call> b</think>c") == [
        ("reasoning", "a <tool_call> b"),
        ("text", "c"),
    ]


def test_mistral_name_alone_is_call_without_arguments():
    assert answer(reader("mistral"), "[TOOL_CALLS]good") == [("call", "good", "{}")]
    assert answer(reader("mistral"), "[TOOL_CALLS]unknown") == [("text", "[TOOL_CALLS]unknown")]
    cut = answer(reader("mistral"), "[TOOL_CALLS]good", FinishReason.LENGTH)
    assert cut == [("text", "[TOOL_CALLS]good")], "it may be the beginning of another name"


def test_non_standard_schema_types_are_coerced():
    schema = {
        "properties": {
            "a": {"type": "float"},
            "b": {"type": "double"},
            "c": {"type": "dict"},
            "d": {"type": "str"},
        }
    }
    tool = FunctionTool("good", None, json.dumps(schema))
    text = "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n"
        for name, value in (("a", "1.5"), ("b", "2"), ("c", '{"x": 1}'), ("d", "3"))
    )
    arguments = answer(
        tool_format("qwen3_coder").create_parser(context(tool)),
        f"<tool_call>\n<function=good>\n{text}</function>\n</tool_call>",
    )
    assert arguments == [("call", "good", '{"a": 1.5, "b": 2, "c": {"x": 1}, "d": "3"}')]


def test_mimo_string_arguments_keep_whitespace():
    text = (
        "<tool_call>\n<function=good>\n<parameter=a>\n x\n</parameter>\n</function>\n</tool_call>"
    )
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
def test_python_literals_are_converted_to_json(name: str, written: str, arguments: object):
    begin, end = ("<|tool_call_start|>", "<|tool_call_end|>") if name == "lfm2" else ("", "")
    ((kind, called, parsed),) = answer(reader(name), f"{begin}[good({written})]{end}")
    assert (kind, called, json.loads(parsed)) == ("call", "good", arguments)


@pytest.mark.parametrize(
    ("name", "empty"),
    [
        ("kimi_k2", KIMI[0] + KIMI[1]),
        ("jamba", "<tool_calls>[]</tool_calls>"),
        ("deepseek_v31", ""),
    ],
)
def test_empty_call_section_yields_no_text(name: str, empty: str):
    assert answer(reader(name), f"Yes.{empty}") == [("text", "Yes.")]


def tool(**properties: object) -> FunctionTool:
    return FunctionTool("good", None, json.dumps({"type": "object", "properties": properties}))


def read_as(name: str, text: str, *tools: FunctionTool) -> Shape:
    return answer(
        tool_format(name).create_parser(context(*(tools or (FunctionTool("good"),)))), text
    )


def dsml(*parameters: str, section: str = "function_calls") -> str:
    body = "".join(f"<\uff5cDSML\uff5cparameter name={one}" for one in parameters)
    begin, end = (f"<{slash}\uff5cDSML\uff5c{section}>" for slash in ("", "/"))
    return f'{begin}<\uff5cDSML\uff5cinvoke name="good">\n{body}</\uff5cDSML\uff5cinvoke>{end}'


END = "</\uff5cDSML\uff5cparameter>"


@pytest.mark.parametrize(
    ("parameters", "schema", "arguments"),
    [
        ((f'"a" string="true">1{END}',), {"a": {"type": "integer"}}, '{"a": 1}'),
        ((f'"a" string="true">1{END}',), {"a": {"type": ["integer", "string"]}}, '{"a": "1"}'),
        ((f'"a" string="true">1{END}',), {}, '{"a": "1"}'),
        (
            (f'"a">1{END}', f'"b" string="true">1{END}'),
            {"a": {"type": "string"}},
            '{"a": "1", "b": "1"}',
        ),
        (
            ('"a" string="true">x <b> ', f'"b" string="true">y{END}'),
            {},
            '{"a": "x <b> ", "b": "y"}',
        ),
        ((f'"arguments" string="false">{{"a": 1}}{END}',), {"a": {"type": "integer"}}, '{"a": 1}'),
        (
            (f'"arguments" string="false">{{"a": 1}}{END}', f'"b" string="true">y{END}'),
            {"a": {}, "b": {}},
            '{"a": 1, "b": "y"}',
        ),
        (
            (f'"arguments" string="false">{{"a": 1}}{END}',),
            {"arguments": {}},
            '{"arguments": {"a": 1}}',
        ),
        ((f'"arguments" string="false">{{"x": 1}}{END}',), {"a": {}}, '{"arguments": {"x": 1}}'),
        ((f'"arguments" string="false">1{END}',), {"a": {}}, '{"arguments": 1}'),
    ],
)
def test_deepseek_parameters_follow_schema(
    parameters: tuple[str, ...], schema: dict[str, object], arguments: str
):
    assert read_as("deepseek_v32", dsml(*parameters), tool(**schema)) == [
        ("call", "good", arguments)
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mimo", "<tool_call><function=good><parameter=a>5</parameter></function></tool_call>"),
        (
            "minimax_m2",
            '<minimax:tool_call><invoke name="good"><parameter '
            'name="a">5</parameter></invoke></minimax:tool_call>',
        ),
    ],
)
def test_untyped_values_are_strings_like_in_vllm(name: str, text: str):
    assert read_as(name, text) == [("call", "good", '{"a": "5"}')]
    assert read_as(name, text, tool(a={"type": "integer"})) == [("call", "good", '{"a": 5}')]


@pytest.mark.parametrize("opening", ["function call<|role_sep|>\n", "<|function_call|>"])
def test_gigachat_call_openings_leave_no_markers_in_text(opening: str):
    call = f'{opening}{{"name": "good", "arguments": {{}}}}'
    assert read_as("gigachat3", f"Hi.<|message_sep|>\n\n{call}") == [
        ("text", "Hi."),
        ("call", "good", "{}"),
    ]
    assert read_as("gigachat3", "Hi.<|message_sep|>\n\nhi") == [
        ("text", "Hi.<|message_sep|>\n\nhi")
    ]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("a:5", '{"a": "5"}'),
        ("a:null", '{"a": "null"}'),
        ("b:5", '{"b": 5}'),
        ('<|"|>two words<|"|>:<|"|>x<|"|>,b:1', '{"two words": "x", "b": 1}'),
    ],
)
@pytest.mark.parametrize("prefix", ["call:", ":"])
def test_gemma_arguments_follow_schema(prefix: str, written: str, arguments: str):
    text = f"<|tool_call>{prefix}good{{{written}}}<tool_call|>"
    assert read_as("gemma4", text, tool(a={"type": "string"}, b={"type": "integer"})) == [
        ("call", "good", arguments)
    ]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"""abc"""', "abc"),
        ("'''it's \\''''", "it's '"),
        ('"""say ""hi"" """', 'say ""hi"" '),
        ('""', ""),
        ('["""a""", ""]', ["a", ""]),
        ('("a")', "a"),
        ("(1)", 1),
        ("((1))", 1),
        ("()", []),
        ("(1,)", [1]),
        ("((1, 2), (3), ({4}))", [[1, 2], 3, [4]]),
        ('{"a": (1)}', {"a": 1}),
        ('({"a": 1})', {"a": 1}),
    ],
)
def test_pythonic_literals_parse_like_python(written: str, value: object):
    [(_, _, arguments)] = read_as("pythonic", f"[good(a={written}, b=2)]")
    assert json.loads(str(arguments)) == {"a": value, "b": 2}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("[foo]", ["foo"]),
        ("{foo}", ["foo"]),
        ("foo(1, [2]) + 3", "foo(1, [2]) + 3"),
        ("[f('a, b'), 1]", ["f('a, b')", 1]),
        ("r'a'", "r'a'"),
    ],
)
def test_pythonic_expression_is_string_of_its_text(written: str, value: object):
    [(_, _, arguments)] = read_as("pythonic", f"[good(a={written}, b=2)]")
    assert json.loads(arguments) == {"a": value, "b": 2}


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [(FinishReason.STOP, '{"city": "Rom"}'), (FinishReason.LENGTH, '{"city": "Rom')],
)
def test_gemma_last_word_is_string(reason: FinishReason, arguments: str):
    text = "<|tool_call>call:good{city:Rom"
    found = tool_format("gemma4").create_parser(context(tool(city={"type": "string"})))
    assert answer(found, text, reason) == [("call", "good", arguments)]


def test_pythonic_quote_inside_string_is_kept():
    written = """[good(a='sed -n '1,4p' /x', b=["it' s" , 1])]"""
    expected = '{"a": "sed -n \'1,4p\' /x", "b": ["it\' s", 1]}'
    assert read_as("pythonic", written) == [("call", "good", expected)]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('"text"', '"text"'),
        ('" {\\"a\\": 1}"', ' {"a": 1}'),
        ('"[1]"', "[1]"),
        ('""', "{}"),
        ('" "', "{}"),
        ('"\\u007b}"', "{}"),
        ("null", "{}"),
    ],
)
def test_hermes_string_arguments_are_parsed_or_kept(written: str, arguments: str):
    text = f'<tool_call>{{"name": "good", "arguments": {written}}}</tool_call>'
    assert read_as("hermes", text) == [("call", "good", arguments)]


@pytest.mark.parametrize(
    "value", ["<![CDATA[ <b>\n]]>", "<![CDATA[</p]]>", "<![CDAT", "x<![CDATA[y]]>", "<<"]
)
def test_minicpm_cdata_section_is_unwrapped(value: str):
    (call,) = read_as(
        "minicpm5", f'<function name="good"><param name="a">{value}</param></function>'
    )
    expected = value[len("<![CDATA[") : -len("]]>")] if value.startswith("<![CDATA[") else value
    assert call[:2] == ("call", "good")
    assert json.loads(call[2]) == {"a": expected}


def test_deepseek_code_block_end_ends_broken_arguments():
    begin = "<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>"
    end = "\n```"
    section = (
        f"<\uff5ctool\u2581{one}\uff5c>"
        for one in ("calls\u2581begin", "call\u2581end", "calls\u2581end")
    )
    opening, closing, final = section
    text = (
        f'{opening}{begin}good\n```json\n{{"a": '
        f"1{end}{closing}{begin}good\n```json\n{{}}{end}{closing}{final}"
    )
    assert read_as("deepseek_v3", text) == [("call", "good", '{"a": 1\n'), ("call", "good", "{}")]


def test_gemma_reasoning_without_name_is_parsed():
    reasoning_format = registry.find_reasoning_format("gemma4")
    assert reasoning_format is not None
    for text in ("<|channel>thought\nA<channel|>B", "<|channel>A<channel|>B"):
        assert answer(reasoning_format.create_parser(context()), text) == [
            ("reasoning", "A"),
            ("text", "B"),
        ]
    spelled = [TextDelta(0, one, (Token(1, one),)) for one in ("<|chan", "nel>A")]
    known = registry.find_reasoning_format("gemma4", ("<|channel>", "<channel|>"))
    assert known is not None
    assert shape(fold(parse(known.create_parser(context()), spelled))) == [("text", "<|channel>A")]


MIMO_CALL = "<tool_call><function=good><parameter=a>5</parameter></function></tool_call>"
CHAIN: dict[str, object] = {
    **{f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(1000)},
    "d1000": {"type": "integer"},
}
HALF: list[object] = [{}] * 1000
HOSTILE_SCHEMAS: dict[str, dict[str, object]] = {
    "a chain of references": {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": CHAIN},
    "unions that multiply": {"properties": {"a": {"anyOf": HALF, "oneOf": HALF}}},
    "values that multiply": {"properties": {"a": {"anyOf": HALF, "enum": list(range(1000))}}},
    "many required names": {
        "properties": {"a": {"type": "string"}, **{f"p{index}": {} for index in range(50_000)}},
        "required": [f"p{index}" for index in range(50_000)],
    },
}


@pytest.mark.parametrize("schema", HOSTILE_SCHEMAS.values(), ids=HOSTILE_SCHEMAS.keys())
def test_hostile_schema_is_not_enforced_and_stays_cheap(schema: dict[str, object]):
    hostile = FunctionTool("good", None, json.dumps({"type": "object", **schema}))
    assert [part[:2] for part in read_as("mimo", MIMO_CALL, hostile)] == [("call", "good")]
    with pytest.raises(Unsupported):
        tool_format("mimo").build_call_syntax(hostile)


def test_optional_long_enum_is_enforced():
    values: dict[str, object] = {"anyOf": [{"enum": list(range(10_000))}, {"type": "null"}]}
    assert tool_format("mimo").build_call_syntax(tool(a=values))
