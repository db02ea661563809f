"""Tool calls as JSON between `<tool_call>` tags."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.events import (
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from dragoman.core.message import CustomTool, FunctionTool
from dragoman.core.syntax import JsonPiece, LiteralText

from .parsing import (
    PATCH,
    SPECIAL,
    Shape,
    answer,
    context,
    deltas,
    fold,
    parse,
    shape,
    token,
    tool_format,
)


def hermes(*tools: str | CustomTool):
    return tool_format("hermes").create_parser(context(*(tools or ("f", "get_weather", PATCH))))


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (call("f", '{"x": 1}'), [("call", "f", '{"x": 1}')]),
        (call("f", '{ "x" :[ 1,{}] }'), [("call", "f", '{ "x" :[ 1,{}] }')]),
        (call("f", '{"x": "</tool_call>"}'), [("call", "f", '{"x": "</tool_call>"}')]),
        (call("f", '{"x": "\\"}\\\\"}'), [("call", "f", '{"x": "\\"}\\\\"}')]),
        (
            '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>',
            [("call", "f", '{"x": 1}')],
        ),
        (
            '<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>',
            [("call", "f", '{"x": 1}')],
        ),
        (
            '<tool_call>{"id": {"a": 0}, "name": "f", "arguments": {}, "z": "}"}</tool_call>',
            [("call", "f", "{}")],
        ),
        ('<tool_call>{"name": "\\u0066"}</tool_call>', [("call", "f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', [("call", "f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": 12 }</tool_call>', [("call", "f", "12")]),
        (call("f", '"{\\"x\\": \\"\\u00e9\\ud83d\\ude00\\"}"'), [("call", "f", '{"x": "é😀"}')]),
        (call("f", "{\"x\": True, 'y': 1}"), [("call", "f", "{\"x\": True, 'y': 1}")]),
        (
            call("f", '{"a": 1}') + call("get_weather", '{"b": 2}'),
            [("call", "f", '{"a": 1}'), ("call", "get_weather", '{"b": 2}')],
        ),
    ],
)
def test_valid_call_is_parsed(text: str, expected: Shape):
    assert answer(hermes(), text) == expected


@pytest.mark.parametrize(
    "text",
    [
        call("unknown", '{"x": 1}'),
        call(
            "unknown", '{"x": "<tool_call>{\\"name\\": \\"f\\", \\"arguments\\": {}}</tool_call>"}'
        ),
        call("unknown", '{"x": "' + call("f", "{}").replace('"', '\\"').replace("\n", "") + '"}'),
        "<tool_call>",
        " \n<tool_call>{]",
        "<tool_call>\n not JSON\n</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>{}</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name" "f"}</tool_call>',
        '<tool_call>{"arguments": {"x": ]}, "name": "f"}</tool_call>',
        '<tool_call>\n{"name": "f',
        '<tool_call>\n{"arguments": {"x": 1}, "na',
        "<tool_cal",
        "a </tool_call> b",
        "x < y",
    ],
)
def test_invalid_call_stays_text_verbatim(text: str):
    assert answer(hermes(), text) == [("text", text)]
    assert answer(hermes(), "So: " + text + " end.") == [("text", "So: " + text + " end.")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hi.\n" + call("f", "{}"), [("text", "Hi."), ("call", "f", "{}")]),
        ("Hi.\n\n" + call("f", "{}"), [("text", "Hi.\n"), ("call", "f", "{}")]),
        ("Hi. " + call("f", "{}"), [("text", "Hi. "), ("call", "f", "{}")]),
        (" \n" + call("f", "{}"), [("call", "f", "{}")]),
        (call("f", "{}") + "\n", [("call", "f", "{}")]),
        (call("f", "{}") + " \n\n" + call("f", "{}"), [("call", "f", "{}")] * 2),
        (call("f", "{}") + "\nDone.\n", [("call", "f", "{}"), ("text", "\nDone.\n")]),
        (
            call("f", "{}") + "\nAnd\n" + call("f", "{}"),
            [("call", "f", "{}"), ("text", "\nAnd"), ("call", "f", "{}")],
        ),
        (call("f", "{}") + "\n<tool", [("call", "f", "{}"), ("text", "\n<tool")]),
        ("\n", [("text", "\n")]),
        ("<<tool_call>{}", [("text", "<<tool_call>{}")]),
        ("<tool_call>" + call("f", "{}"), [("call", "f", "{}")]),
    ],
)
def test_only_template_whitespace_is_dropped(text: str, expected: Shape):
    assert answer(hermes(), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '<tool_call>{"name": "f", "arguments": {"x": 1}\n</tool_call>!',
            [("call", "f", '{"x": 1}'), ("text", "!")],
        ),
        (
            '<tool_call>{"name": "f", "arguments": {}}\n' + call("f", "{}"),
            [("call", "f", "{}")] * 2,
        ),
        (
            '<tool_call>{"name": "f", "arguments": {}}}</tool_call>',
            [("call", "f", "{}"), ("text", "}</tool_call>")],
        ),
        (call("f", '{"x": [1}'), [("call", "f", '{"x": [1}}')]),
        (
            '<tool_call>{"name": "f" "arguments": {}}</tool_call>ok',
            [("call", "f", '"arguments": {}}'), ("text", "ok")],
        ),
    ],
)
def test_malformed_call_of_declared_tool_is_kept(text: str, expected: Shape):
    assert answer(hermes(), text) == expected


@pytest.mark.parametrize("written", ['{"city": "Par', '{"city": [', "{", ""])
def test_truncated_call_keeps_partial_arguments(written: str):
    text = '<tool_call>\n{"name": "f", "arguments": ' + written
    assert answer(hermes(), text, FinishReason.LENGTH) == [("call", "f", written)]


def test_call_cut_at_closing_marker_is_complete():
    assert answer(hermes(), call("f", "{}")[:-3], FinishReason.LENGTH) == [("call", "f", "{}")]


def test_call_name_is_emitted_before_argument_deltas():
    parser = hermes()
    pieces = [
        "<tool_call>",
        '\n{"name": "',
        "get_weather",
        '", "arg',
        'uments": {"city',
        '": "Paris"}',
        "}\n",
        "</tool_call>",
    ]
    out = [parser.feed(delta) for delta in deltas(pieces)]
    assert out[3] == [ToolCallStart(0, "call_0", "get_weather", tuple(map(token, pieces[:4])))]
    assert out[4:6] == [
        [ToolCallDelta(0, '{"city', (token(pieces[4]),))],
        [ToolCallDelta(0, '": "Paris"}', (token(pieces[5]),))],
    ]
    assert [out[n] for n in (0, 1, 2, 6, 7)] == [[]] * 5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"input": "a\\n\\"b\\" \\u00e9 \\ud83d\\ude00"}', 'a\n"b" é 😀'),
        ('{"input": ""}', ""),
        ('{"why": {"input": 1}, "input": "x", "z": "y"}', "x"),
        ('"just text"', "just text"),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"input": 5}', '{"input": 5}'),
        ('{"input": "\\x \\ud83d \\u12"}', "\\x � \\u12"),
        ("12", "12"),
    ],
)
def test_custom_tool_input_is_decoded(arguments: str, expected: str):
    assert answer(hermes(), call("patch", arguments)) == [("custom", "patch", expected)]


def test_custom_tool_input_is_streamed():
    parser = hermes()
    parser.feed(TextDelta(0, '<tool_call>{"name": "patch", "arguments": {"input": "a'))
    assert parser.feed(TextDelta(0, "b\\")) == [ToolCallDelta(0, "b")]
    assert parser.feed(TextDelta(0, 'nc"')) == [ToolCallDelta(0, "\nc")]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.lists(st.dictionaries(st.text(), json_values, max_size=3), min_size=1, max_size=3),
    st.booleans(),
)
def test_multiple_calls_keep_arguments_verbatim(wanted: list[dict[str, object]], plain: bool):
    written = [json.dumps(arguments, ensure_ascii=plain) for arguments in wanted]
    text = "\n".join(call("f", arguments) for arguments in written)
    assert answer(hermes(), text) == [("call", "f", arguments) for arguments in written]


@given(st.text())
def test_custom_tool_any_input_round_trips(wanted: str):
    assert answer(hermes(), call("patch", json.dumps({"input": wanted}))) == [
        ("custom", "patch", wanted)
    ]


def test_parsed_tokens_join_to_raw_text():
    text = "Hi." + call("f", '{"x": 1}') + "Bye."
    choice = fold(parse(hermes(), deltas(text)))
    assert "".join(one.text for one in choice.tokens[:-1]) == text
    ((_, before), (_, name, arguments), (_, after)) = shape(choice)
    assert before + call(name, arguments) + after == text


def test_spelled_marker_with_single_token_vocabulary_is_text():
    pieces = ["<", "tool_call", ">", '{"name": "f", "arguments": {}}', "</", "tool_call>"]
    parser = tool_format("hermes", SPECIAL).create_parser(context("f"))
    assert shape(fold(parse(parser, deltas(pieces)))) == [("text", "".join(pieces))]
    pieces[:3] = ["<tool_call>"]
    parser = tool_format("hermes", SPECIAL).create_parser(context("f"))
    assert shape(fold(parse(parser, deltas(pieces)))) == [("call", "f", "{}")]


def test_fifty_interleaved_streams_do_not_mix():
    format = tool_format("hermes")
    texts = [
        f"Text {n}\n" + call("f", f'{{"n": {n}}}') + call("g", f'{{"n": "{n}"}}') for n in range(50)
    ]
    parsers = [format.create_parser(context("f", "g")) for _ in texts]
    events = [list[object]() for _ in texts]
    for at in range(max(map(len, texts))):
        for text, parser, out in zip(texts, parsers, events, strict=True):
            out.extend(parser.feed(TextDelta(0, text[at : at + 1])) if at < len(text) else ())
    for n, out in enumerate(events):
        calls = "".join(event.arguments for event in out if isinstance(event, ToolCallDelta))
        joined = "".join(event.text for event in out if isinstance(event, TextDelta))
        assert (joined, calls) == (f"Text {n}", f'{{"n": {n}}}{{"n": "{n}"}}')


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("So <tool", [TextDelta(0, "So "), TextDelta(0, "<tool")]),
        ('<tool_call>{"na', [TextDelta(0, '<tool_call>{"na')]),
        (
            '<tool_call>{"name": "f", "arguments": nul',
            [ToolCallStart(0, "call_0", "f"), ToolCallDelta(0, "nul")],
        ),
        ("", []),
    ],
)
def test_other_events_pass_through_in_order(text: str, before: list[Event]):
    parser = hermes()
    native = ReasoningDelta(0, "native", (token("native"),))
    assert [*parser.feed(TextDelta(0, text)), *parser.feed(native)] == [*before, native]
    assert parser.feed(TextDelta(0, "So")) == [TextDelta(0, "So")]


def test_plain_text_delta_passes_through_unchanged():
    parser = hermes()
    parser.feed(TextDelta(0, "So"))
    delta = TextDelta(0, " it is", (token(" it is"),))
    assert parser.feed(delta)[0] is delta


def test_build_call_syntax_returns_hermes_form():
    format = tool_format("hermes")
    assert format.build_call_syntax(FunctionTool("f", parameters='{"type": "object"}')) == (
        LiteralText('<tool_call>\n{"name": "f", "arguments": '),
        JsonPiece('{"type": "object"}'),
        LiteralText("}\n</tool_call>"),
    )
    no_arguments = '{"type":"object","properties":{},"additionalProperties":false}'
    assert format.build_call_syntax(FunctionTool("f"))[1] == JsonPiece(no_arguments)
    schema = format.build_call_syntax(PATCH)[1]
    assert isinstance(schema, JsonPiece)
    assert json.loads(schema.schema or "")["required"] == ["input"]
    assert (format.markers, format.call_separator) == (("<tool_call>", "</tool_call>"), "\n")


@pytest.mark.parametrize("name", ['a"b', "é\n", "</tool_call>", "<tool_call>"])
def test_build_call_syntax_escaped_name_round_trips(name: str):
    head, value, tail = tool_format("hermes").build_call_syntax(FunctionTool(name))
    assert isinstance(head, LiteralText)
    assert isinstance(tail, LiteralText)
    assert isinstance(value, JsonPiece)
    assert head.text.count("<") == 1, "no text in it may look like a delimiter"
    assert answer(hermes(name), head.text + "{}" + tail.text) == [("call", name, "{}")]
