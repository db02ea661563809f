"""Answers are parsed by the response template that a model ships."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import Unsupported
from dragoman.core.events import (
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from dragoman.core.message import FunctionTool
from dragoman.core.syntax import JsonPiece, LiteralText, ReasoningSyntax
from dragoman.parsers import registry
from dragoman.parsers.response_template import ResponseTemplateFormat, load

from .parsing import (
    END,
    PATCH,
    Shape,
    answer,
    context,
    cut,
    deltas,
    fold,
    parse,
    regroup,
    shape,
    token,
)
from .templates import (
    ASSISTANT,
    COHERE,
    DEEPSEEK,
    ERNIE,
    GEMMA,
    GPT_OSS,
    INKLING,
    LINES,
    QWEN3,
    QWEN3_CODER,
    TEMPLATES,
    Template,
    source,
    template,
)

SCHEMA = json.dumps(
    {
        "properties": {
            "n": {"type": "integer"},
            "s": {"type": "string"},
            "b": {"type": "boolean"},
            "l": {"type": "array"},
        }
    }
)
F = FunctionTool("f", parameters=SCHEMA)


once = cache(load)


def parser(spec: Template, tail: str = "", *, added: tuple[str, ...] = ()):
    _, format = once(source(spec), added)
    return format.create_parser(context(F, "g", PATCH, tail=tail))


@pytest.mark.parametrize(
    ("spec", "text", "expected"),
    [
        (
            QWEN3,
            "<think>\nhm\n</think>\n\nYes.\n"
            '<tool_call>\n{"name": "f", "arguments": {"s": "<"}}\n</tool_call>\n<|im_end|>',
            [("reasoning", "hm"), ("text", "Yes."), ("call", "f", '{"s": "<"}')],
        ),
        (
            QWEN3_CODER,
            "<tool_call>\n<function=f>\n<parameter=s>\n5 "
            "<b>\n</parameter>\n<parameter=n>\n5\n</parameter>\n"
            "<parameter=l>\n[1, 2]\n</parameter>\n</function>\n</tool_call>",
            [("call", "f", '{"s": "5 <b>", "n": 5, "l": [1, 2]}')],
        ),
        (
            DEEPSEEK,
            'Hm</think>Yes\n\n<DSML:calls>\n<DSML:invoke name="f">\n<DSML:p name="n" '
            'string="false">5</DSML:p>\n'
            '<DSML:p name="s" string="true">5</DSML:p>\n</DSML:invoke>\n</DSML:calls><|end|>',
            [("text", "Hm</think>Yes"), ("call", "f", '{"n": 5, "s": "5"}')],
        ),
        (
            GPT_OSS,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
            '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}<|call|>',
            [("reasoning", "hm"), ("call", "f", '{"n": 1}')],
        ),
        (GPT_OSS, "<|channel|>final<|message|>2<|return|>", [("text", "2")]),
        (
            GEMMA,
            "<|channel>thought\nhm<channel|>"
            '<|tool_call>call:f{n:1,l:[<|"|>a, b:<|"|>,true],"o": {k:null}}<tool_call|>Hi<turn|>',
            [
                ("reasoning", "hm"),
                ("call", "f", '{"n": 1, "l": ["a, b:", true], "o": {"k": null}}'),
                ("text", "Hi"),
            ],
        ),
        (
            COHERE,
            "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>"
            '[{"tool_name": "f", "parameters": {"n": "1"}}, {"tool_name": "g", "parameters": '
            "{}}]<|END_ACTION|>",
            [("reasoning", "hm"), ("call", "f", '{"n": 1}'), ("call", "g", "{}")],
        ),
        (
            INKLING,
            "<|thinking|>a <|end|><|message|><|thinking|> b<|end|><|message|><|text|> c "
            "<|end|><|message|>f<|invoke|>"
            '{"name":"f","args":{"n":1}}<|end|>',
            [("reasoning", "a \n b"), ("text", "c"), ("call", "f", '{"n":1}')],
        ),
        (
            ERNIE,
            "hm\n</think>\n\n<response>\nYes\n</response>\n</s>",
            [("reasoning", "hm"), ("text", "Yes")],
        ),
        (
            LINES,
            "Hi\n[f]\nn: 1\ns: a:b\n\nb:true\n[/call] <end>",
            [("text", "Hi"), ("call", "f", '{"n": 1, "s": "a:b", "b": true}')],
        ),
    ],
    ids=[
        "qwen3",
        "coder",
        "deepseek",
        "gpt_oss",
        "gpt_oss final",
        "gemma",
        "cohere",
        "inkling",
        "ernie",
        "lines",
    ],
)
def test_model_templates_parse_expected_parts(spec: Template, text: str, expected: Shape):
    assert answer(parser(spec), text) == expected


every_template = pytest.mark.parametrize(("spec", "bits"), TEMPLATES.values(), ids=list(TEMPLATES))
SCRAPS = st.sampled_from(["Hi", " there ", "\n", "<", "{", '"', "\n\n", "é"])


@every_template
@given(st.data())
def test_parser_is_independent_of_chunking_and_keeps_tokens(
    spec: Template, bits: list[str], data: st.DataObject
):
    text = "".join(data.draw(st.lists(SCRAPS | st.sampled_from(bits), max_size=6)))
    pieces = cut(data.draw, text)
    full = fold(parse(parser(spec), deltas([text])))
    parted = fold(parse(parser(spec), deltas(pieces)))
    assert shape(parted) == shape(full) == shape(fold(parse(parser(spec), deltas(text))))
    assert [one.text for one in parted.tokens] == [*pieces, END.text]


@every_template
def test_parser_any_split_point_gives_same_result(spec: Template, bits: list[str]):
    text = "Hi " + " and\n".join(bits) + " Bye"
    full = shape(fold(parse(parser(spec), deltas([text]))))
    for at in range(1, len(text)):
        assert shape(fold(parse(parser(spec), deltas([text[:at], text[at:]])))) == full, text[:at]


@given(st.data())
def test_parser_result_is_independent_of_token_grouping(data: st.DataObject):
    texts = [
        "<think>",
        "</think>",
        "<tool_call>",
        "<",
        "think",
        ">",
        "x",
        "\n",
        '{"name": "g"}',
        "</tool_call>",
    ]
    tokens = [token(text) for text in data.draw(st.lists(st.sampled_from(texts)))]
    added = ("<think>", "<tool_call>")
    each = fold(
        parse(parser(QWEN3, added=added), [TextDelta(0, one.text, (one,)) for one in tokens])
    )
    assert shape(fold(parse(parser(QWEN3, added=added), regroup(data.draw, tokens)))) == shape(each)


@pytest.mark.parametrize(
    ("tail", "text", "expected"),
    [
        (ASSISTANT, "<think>hm</think>Yes", [("reasoning", "hm"), ("text", "Yes")]),
        (ASSISTANT + "<think>\n", "hm\n</think>\n\nYes", [("reasoning", "hm"), ("text", "Yes")]),
        (ASSISTANT + "<think>So", " far</think>Yes", [("reasoning", " far"), ("text", "Yes")]),
        (ASSISTANT + "<think>\n\n</think>\n\n", "Yes", [("text", "Yes")]),
        (ASSISTANT + "<thi", "nk>hm</think>Yes", [("reasoning", "hm"), ("text", "Yes")]),
        (ASSISTANT + "<thi", "s is text", [("text", "s is text")]),
        ("<think>" + ASSISTANT, "Yes", [("text", "Yes")]),
        (
            ASSISTANT + "<tool_call>",
            '{"name": "f", "arguments": {}}</tool_call>',
            [("call", "f", "{}")],
        ),
        (
            ASSISTANT + "<tool_call>",
            '{"name": "unknown"}</tool_call>',
            [("text", '{"name": "unknown"}</tool_call>')],
        ),
        (ASSISTANT + '<tool_call>{"name": "f"}</tool_call>', "Yes", [("text", "Yes")]),
    ],
)
def test_prompt_tail_determines_initial_parser_state(tail: str, text: str, expected: Shape):
    assert answer(parser(QWEN3, tail), text) == expected


def test_prompt_part_of_delimiter_is_not_emitted():
    begun = parser(QWEN3_CODER, ASSISTANT + "<tool_call>\n<function=un")
    assert answer(begun, "known>x</tool_call>") == [("text", "known>x</tool_call>")]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (QWEN3, '<tool_call>{"name": "unknown", "arguments": {"x": "<tool_call>"}}</tool_call>'),
        (QWEN3, "<tool_call>no JSON</tool_call>"),
        (QWEN3, '<tool_call>[{"name": "f"}]</tool_call>'),
        (QWEN3_CODER, "<tool_call><function=unknown>\n<parameter=x>1</parameter></tool_call>"),
        (GPT_OSS, "<|channel|>commentary to=functions.unknown<|message|>{}<|call|>"),
        (COHERE, "<|START_ACTION|>[1]<|END_ACTION|>"),
        (COHERE, '<|START_ACTION|>[{"tool_name": "unknown", "parameters": {}}]<|END_ACTION|>'),
        (GEMMA, "<|tool_call>call:f{x:<tool_call|>"),
    ],
)
def test_invalid_call_stays_text_verbatim(spec: Template, text: str):
    assert answer(parser(spec), text) == [("text", text)]


def test_call_streams_once_name_is_known():
    reader = parser(QWEN3)
    pieces = [
        "<tool_call>\n",
        '{"name": "f",',
        ' "arguments": {"s"',
        ': "</tool_call>"}',
        "}</tool_call>",
    ]
    assert [reader.feed(delta) for delta in deltas(pieces)] == [
        [],
        [ToolCallStart(0, "call_0", "f", tuple(map(token, pieces[:2])))],
        [ToolCallDelta(0, '{"s"', (token(pieces[2]),))],
        [ToolCallDelta(0, ': "</tool_call>"}', (token(pieces[3]),))],
        [],
    ]


def test_call_with_leading_name_streams():
    reader = parser(GPT_OSS)
    head = "<|channel|>commentary to=functions.f<|message|>"
    events = [reader.feed(TextDelta(0, text)) for text in (head, '{"s', '": 1}', "<|call|>")]
    assert events == [
        [],
        [ToolCallStart(0, "call_0", "f"), ToolCallDelta(0, '{"s')],
        [ToolCallDelta(0, '": 1}')],
        [],
    ]


def test_custom_tool_input_is_decoded():
    text = '<tool_call>{"name": "patch", "arguments": {"input": "a\\nb"}}</tool_call>'
    assert answer(parser(QWEN3), text) == [("custom", "patch", "a\nb")]
    text = "<tool_call><function=patch><parameter=input>a\nb</parameter></tool_call>"
    assert answer(parser(QWEN3_CODER), text) == [("custom", "patch", "a\nb")]


def test_malformed_arguments_of_streaming_call_are_kept():
    text = '<tool_call>{"name": "f", "arguments": {"n": [1}} </tool_call> Yes'
    assert answer(parser(QWEN3), text) == [("call", "f", '{"n": [1}}'), ("text", "Yes")]


@pytest.mark.parametrize(
    ("schema", "cast"),
    [
        ({"$ref": "#/$defs/count"}, "1"),
        ({"type": ["string", "integer"]}, '"1"'),
        ({"type": "number"}, "1"),
        ({}, '"1"'),
    ],
)
def test_string_arguments_are_cast_to_schema_types(schema: Template, cast: str):
    parameters = {"properties": {"n": schema}, "$defs": {"count": {"type": "integer"}}}
    _, tools = load(source(COHERE))
    reader = tools.create_parser(context(FunctionTool("f", parameters=json.dumps(parameters))))
    text = '<|START_ACTION|>[{"tool_name": "f", "parameters": {"n": "1"}}]<|END_ACTION|>'
    assert answer(reader, text) == [("call", "f", f'{{"n": {cast}}}')]


def test_truncated_call_is_not_completed():
    streamed = '<tool_call>{"name": "f", "arguments": {"n": 1'
    assert answer(parser(QWEN3), streamed, FinishReason.LENGTH) == [("call", "f", '{"n": 1')]
    full = "<tool_call><function=f><parameter=n>1</parameter>"
    assert answer(parser(QWEN3_CODER), full, FinishReason.LENGTH) == [("text", full)]
    assert answer(parser(QWEN3_CODER), full, FinishReason.STOP) == [("call", "f", '{"n": 1}')]


def test_reasoning_and_text_are_streamed_immediately():
    reader = parser(QWEN3, ASSISTANT + "<think>\n")
    out = [
        reader.feed(delta) for delta in deltas(["So", " far", " \n", "</think>", "Yes", " <b", ">"])
    ]
    assert out[:4] == [
        [ReasoningDelta(0, "So", (token("So"),))],
        [ReasoningDelta(0, " far", (token(" far"),))],
        [],
        [],
    ]
    assert [
        [event.text for event in events if isinstance(event, TextDelta)] for events in out[4:]
    ] == [
        ["Yes"],
        [" <b"],
        [">"],
    ]


@pytest.mark.parametrize(
    ("spec", "text", "before"),
    [
        (QWEN3, "So <tool", [TextDelta(0, "So"), TextDelta(0, " <tool")]),
        (QWEN3, "<think>hm", [ReasoningDelta(0, "hm")]),
        (QWEN3, '<tool_call>{"na', [TextDelta(0, '<tool_call>{"na')]),
        (COHERE, "<|START_ACTION|>[", [TextDelta(0, "<|START_ACTION|>[")]),
    ],
)
def test_other_events_pass_through_in_order(spec: Template, text: str, before: list[Event]):
    reader = parser(spec)
    native = ToolCallStart(0, "c", "native", (token("native"),))
    assert [*reader.feed(TextDelta(0, text)), *reader.feed(native)] == [*before, native]
    assert reader.feed(TextDelta(0, "<think>")) == []


def test_plain_text_delta_passes_through_unchanged():
    reader = parser(QWEN3)
    reader.feed(TextDelta(0, "So"))
    delta = TextDelta(0, " it is", (token(" it is"),))
    assert reader.feed(delta)[0] is delta


def test_spelled_marker_with_single_token_vocabulary_is_text():
    pieces = ["<", "think", ">", "x"]
    assert shape(fold(parse(parser(QWEN3, added=("<think>",)), deltas(pieces)))) == [
        ("text", "<think>x")
    ]
    assert shape(fold(parse(parser(QWEN3), deltas(pieces)))) == [("reasoning", "x")]


def test_load_returns_one_format_for_reasoning_and_tools():
    reasoning, tools = load(source(QWEN3))
    assert reasoning is tools
    (only,) = registry.create_parser(reasoning, tools, context("f")).feed(TextDelta(0, "Yes"))
    assert only == TextDelta(0, "Yes")
    assert isinstance(reasoning, ResponseTemplateFormat)
    assert reasoning.call_openers == ("<tool_call>",)


def test_template_without_reasoning_parses_full_output():
    reasoning, tools = load(source(LINES))
    assert reasoning is None
    assert answer(registry.create_parser(reasoning, tools, context()), "Yes <end>") == [
        ("text", "Yes")
    ]


def test_markers_are_added_tokens_used_by_template():
    _, tools = load(source(GEMMA), ("<|channel>", '<|"|>', "<unused>", "<|tool_call>", "<turn|>"))
    assert tools.markers == ("<|channel>", '<|"|>', "<|tool_call>", "<turn|>")
    _, tools = load(source(QWEN3))
    assert set(tools.markers) == {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<|im_end|>",
    }


def test_call_openers_exclude_shared_markers():
    _, tools = load(source(GPT_OSS), ("<|channel|>", "<|message|>", "<|call|>"))
    assert isinstance(tools, ResponseTemplateFormat)
    assert tools.markers == ("<|channel|>", "<|message|>", "<|call|>")
    assert tools.call_openers == ()


def test_build_call_syntax_returns_template_form():
    reasoning, tools = load(source(QWEN3))
    assert reasoning is not None
    assert reasoning.syntax == ReasoningSyntax("<think>", "</think>")
    assert tools.build_call_syntax(F) == (
        LiteralText('<tool_call>{"name": "f", "arguments": '),
        JsonPiece(SCHEMA),
        LiteralText("}</tool_call>"),
    )
    _, tools = load(source(GPT_OSS))
    assert tools.build_call_syntax(F)[0] == LiteralText(
        "<|channel|>commentary to=functions.f<|message|>"
    )
    _, tools = load(source(QWEN3_CODER))
    with pytest.raises(Unsupported):
        tools.build_call_syntax(F)


@pytest.mark.parametrize("spec", [QWEN3, GPT_OSS, INKLING])
def test_build_call_syntax_output_round_trips(spec: Template):
    _, tools = load(source(spec))
    head, _, tail = tools.build_call_syntax(F)
    assert isinstance(head, LiteralText)
    assert isinstance(tail, LiteralText)
    assert answer(parser(spec), head.text + '{"n": 1}' + tail.text) == [("call", "f", '{"n": 1}')]


CONTENT: Template = {"close": "<end>"}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({}, "fields"),
        ({"fields": {"content": CONTENT}}, "start_anchor"),
        (template("A:"), "fields"),
        ({**template("A:", content=CONTENT), "version": 2}, "version 2"),
        ({**template("A:", content=CONTENT), "more": 1}, "more"),
        (template("A:", content=CONTENT, thinking={}), "'content', 'thinking'"),
        (template("A:", citations=CONTENT), "'citations'"),
        (template("A:", content={"more": 1}), "'content'.*more"),
        (
            template("A:", content={"close": "a", "close_pattern": "a"}),
            "'content', close.*not both",
        ),
        (template("A:", content={"close": []}), "'content', close"),
        (template("A:", content={"close": [""]}), "'content', close"),
        (
            template("A:", content={"close_pattern": "(?=a)"}),
            r"'content', close.*\(\?=a.*not supported",
        ),
        (template("A:", content={"close_pattern": "a*"}), "'content', close.*empty string"),
        (template("A:", content={"close_pattern": "^a"}), "'content', close"),
        (template("A:", content={"close_pattern": "("}), "'content', close.*invalid"),
        (template("A:", content={"content": "json"}), "'content' must be plain text"),
        (template("A:", content={"content": "yaml"}), "'content'.*yaml"),
        (template("A:", content={"join": " "}), "'content'.*join"),
        (template("A:", content={"content_args": {"more": 1}}), "'content', content_args.*more"),
        (template("A:", tool_calls={"content": "json"}), "'tool_calls'.*open"),
        (
            template("A:", tool_calls={"open_pattern": "(?P<x>a)", "content": "json"}),
            "'tool_calls'.*'x'",
        ),
        (
            template("A:", tool_calls={"open": "a", "transform": "x {content}"}),
            "'tool_calls', transform",
        ),
        (
            template("A:", tool_calls={"open": "a", "transform_each": True}),
            "'tool_calls'.*transform_each",
        ),
        (
            template("A:", tool_calls={"open": "a", "content": "xml-inline"}),
            "'tool_calls', content_args.*tag_pattern",
        ),
        (
            template(
                "A:",
                tool_calls={
                    "open": "a",
                    "content": "xml-inline",
                    "content_args": {"tag_pattern": "a"},
                },
            ),
            "'tool_calls', content_args.*'key'",
        ),
    ],
)
def test_load_unsupported_template_raises_value_error(spec: Template, named: str):
    with pytest.raises(ValueError, match=named):
        load(source(spec))


def test_unmatched_delimiter_text_is_held_up_to_limit():
    reader = parser(template("A:", content={"close_pattern": "<.*?>"}))
    text = "<" * 3000
    released = "".join(
        event.text
        for char in text
        for event in reader.feed(TextDelta(0, char))
        if isinstance(event, TextDelta)
    )
    assert 1900 < len(released) < 3000
