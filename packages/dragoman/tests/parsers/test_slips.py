"""Calls with a slip: whatever a model inserts, and wherever.

The arguments of a call are valid JSON or the model's text unchanged, the result does
not depend on how the text is split, and text between two arguments changes neither of
them. `python -m tests.parsers.test_slips` prints the number of cases.
"""

from __future__ import annotations

import json

import pytest

from dragoman.core.events import ChoiceFinished, FinishReason, TextDelta, Token
from dragoman.core.message import FunctionTool

from .goldens import TOOLS
from .parsing import Shape, answer, context, fold, parse, shape, tool_format
from .slips import (
    ARGUMENTS,
    FAMILIES,
    PYTHONIC_FAMILIES,
    TAG_FAMILIES,
    Quote,
    Slip,
    choose_cuts,
    insert_anywhere,
    insert_between_arguments,
    is_json_object,
    list_slips,
    quote_tags,
    read_quote,
    read_text,
    read_tokens,
    read_transcript,
    sample,
)

CONVERTED = (*TAG_FAMILIES, *PYTHONIC_FAMILIES)
STRIDE = 2000
LONG_STRIDE = 20


def check_anywhere(slip: Slip) -> None:
    whole = read_text(slip.family, slip.raw)
    assert read_text(slip.family, slip.raw, choose_cuts(slip)) == whole, slip
    assert read_text(slip.family, slip.raw, range(len(slip.raw))) == whole, slip
    for part in (*whole, *read_tokens(slip.family, slip.raw)):
        if part[0] == "call" and not is_json_object(part[2]):
            assert slip.family not in CONVERTED, (slip, part)
            assert part[2] in slip.raw, (slip, part)


def check_between_arguments(slip: Slip) -> None:
    raw, _ = read_transcript(slip.family)
    expected = summarize(read_text(slip.family, raw))
    assert summarize(read_text(slip.family, slip.raw)) == expected, slip
    assert summarize(read_tokens(slip.family, slip.raw)) == expected, slip


def check_quote(quote: Quote) -> None:
    raw, _ = read_transcript(quote.family)
    expected = summarize(read_text(quote.family, raw))
    expected[1] = ("call", "get_weather", {**ARGUMENTS, "city": quote.value})
    whole = read_quote(quote)
    assert summarize(whole) == expected, quote
    at = raw.index("Paris")
    for cuts in ((at + 7,), (at + 1, at + 12), range(len(quote.raw))):
        assert read_quote(quote, cuts) == whole, quote
    assert summarize(read_quote(quote, has_tokens=True)) == expected, quote


def summarize(parts: Shape) -> list[object]:
    return [(*part[:2], json.loads(part[2])) if part[0] == "call" else part for part in parts]


@pytest.mark.parametrize("family", FAMILIES)
def test_call_with_slip_is_json_or_unchanged_text(family: str):
    for slip in sample(insert_anywhere(family), STRIDE):
        check_anywhere(slip)


@pytest.mark.parametrize("family", CONVERTED)
def test_slip_between_arguments_changes_no_argument(family: str):
    for slip in sample(insert_between_arguments(family), 4):
        check_between_arguments(slip)


@pytest.mark.parametrize("family", TAG_FAMILIES)
def test_value_with_quoted_tag_is_unchanged(family: str):
    for quote in sample(quote_tags(family), 5):
        check_quote(quote)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_call_with_any_slip_is_json_or_unchanged(family: str):
    for slip in sample(insert_anywhere(family), LONG_STRIDE):
        check_anywhere(slip)


@pytest.mark.long
@pytest.mark.parametrize("family", TAG_FAMILIES)
def test_value_with_any_quoted_tag_is_unchanged(family: str):
    for quote in quote_tags(family):
        check_quote(quote)


@pytest.mark.long
@pytest.mark.parametrize("family", CONVERTED)
def test_any_slip_between_arguments_changes_none(family: str):
    for slip in insert_between_arguments(family):
        check_between_arguments(slip)


PLACE = FunctionTool(
    "find",
    None,
    json.dumps(
        {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "n": {"type": "integer"},
                "where": {"type": "object"},
                "tags": {"type": "array"},
            },
        }
    ),
)


def read_call(family: str, text: str, reason: FinishReason = FinishReason.STOP) -> Shape:
    return answer(tool_format(family).create_parser(context(PLACE, *TOOLS)), text, reason)


def qwen(body: str) -> str:
    return f"<tool_call>\n<function=find>\n{body}</function>\n</tool_call>"


def minimax(body: str) -> str:
    return f'<minimax:tool_call>\n<invoke name="find">\n{body}</invoke>\n</minimax:tool_call>'


QUERY = "<parameter=query>\n/a/t.py\n</parameter>\n"


@pytest.mark.parametrize(
    ("family", "text", "arguments"),
    [
        ("qwen3_coder", qwen(QUERY + "</parameter>\n"), {"query": "/a/t.py"}),
        ("qwen3_coder", qwen(QUERY + "</function>\n<parameter=n>\n1\n</parameter>\n"), None),
        ("qwen3_coder", qwen("<parameter=query>\n/a/t.py\n<parameter=n>\n1\n"), None),
        ("qwen3_coder", qwen('<parameter="query">\n/a/t.py\n</parameter>'), {"query": "/a/t.py"}),
        ("qwen3_coder", qwen("<parameter=query\n/a/t.py\n</parameter>"), {"query": "/a/t.py"}),
        ("qwen3_coder", qwen('{"query": "/a/t.py", "n": 1}\n'), None),
        ("qwen3_coder", qwen(QUERY).replace("</function>", "</invoke>"), {"query": "/a/t.py"}),
        ("qwen3_coder", qwen(QUERY).replace("<function=find>", '<function="find">'), None),
        ("qwen3_coder", qwen(QUERY).replace("<function=", "<function=<function="), None),
        ("qwen3_coder", qwen(QUERY).partition("</function>")[0], {"query": "/a/t.py"}),
        (
            "qwen3_coder",
            qwen('<parameter=where>\n{"a": 1,\n</parameter>\n' + QUERY),
            {"where": '{"a": 1,', "query": "/a/t.py"},
        ),
        (
            "qwen3_coder",
            qwen('<parameter=where>\n{"a": "b\n</parameter>\n' + QUERY),
            {"where": '{"a": "b', "query": "/a/t.py"},
        ),
        (
            "qwen3_coder",
            qwen('<parameter=where>\n{"a": "</parameter>"}\n</parameter>\n'),
            {"where": {"a": "</parameter>"}},
        ),
        (
            "qwen3_coder",
            qwen("<parameter=where>\n{'a': True, 'b': [None, (1, 'it\\'s')]}\n</parameter>\n"),
            {"where": {"a": True, "b": [None, [1, "it's"]]}},
        ),
        ("qwen3_coder", qwen("<parameter=tags>\n('a', 'b')\n</parameter>\n"), {"tags": ["a", "b"]}),
        ("qwen3_coder", qwen("<parameter=tags>\nnone\n</parameter>\n"), {"tags": "none"}),
        (
            "glm47",
            "<tool_call>find<arg_key>query</arg_key>how many days</arg_value></tool_call>",
            {"query": "how many days"},
        ),
        (
            "glm47",
            "<tool_call>find<arg_key>query</arg_key><arg_value>x<arg_key>n</arg_key>"
            "<arg_value>1</tool_call>",
            {"query": "x", "n": 1},
        ),
        (
            "glm47",
            "<tool_call>find<arg_key>query<arg_value>x</arg_value></tool_call></tool_call>",
            {"query": "x"},
        ),
        (
            "glm47",
            "<tool_call>find<arg_key>query</arg_key> is <arg_value>x</arg_value></tool_call>",
            {"query": "x"},
        ),
        (
            "glm47",
            "<tool_call>find<arg_key>query</arg_key><arg_key>n</arg_key><arg_value>1</arg_value>"
            "</tool_call>",
            {"n": 1},
        ),
        (
            "glm47",
            "<tool_call>find<arg_key>query</arg_key><arg_value>see </tool_call> and "
            "<arg_key>x</arg_key></arg_value></tool_call>",
            {"query": "see </tool_call> and <arg_key>x</arg_key>"},
        ),
        ("glm47", '<tool_call><tool_call>find\n{"query": "x"}</tool_call>', {"query": "x"}),
        ("minimax_m2", minimax("<parameter name='query'>x</parameter>"), {"query": "x"}),
        ("minimax_m2", minimax("<parameter name=query>x</parameter>"), {"query": "x"}),
        (
            "minimax_m2",
            minimax('<parameter name="n" type="integer">1</parameter>').replace('"find"', "'find'"),
            {"n": 1},
        ),
        ("minimax_m2", minimax("<!-- none --><br/>"), {}),
        (
            "minicpm5",
            '<function name="find"><param>x</param><param name="n">1</param></function>',
            {"n": 1},
        ),
    ],
)
def test_tags_with_slip_yield_the_arguments(
    family: str, text: str, arguments: dict[str, object] | None
):
    expected = {"query": "/a/t.py", "n": 1} if "1" in text else {"query": "/a/t.py"}
    assert summarize(read_call(family, text)) == [
        ("call", "find", expected if arguments is None else arguments)
    ]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{query:weather in Tokyo<|"|>}', {"query": "weather in Tokyo"}),
        ("{query:weather in Tokyo, Japan}", {"query": "weather in Tokyo, Japan"}),
        ('{query:<|"|>sql(<|"|><|"|>1, 2<|"|>).df()<|"|>}', {"query": 'sql(""1, 2").df()'}),
        ('{query:<|"|>a <|"|>b<|"|>, c<|"|>,n:1}', {"query": 'a "b", c', "n": 1}),
        ('{"query": "has } brace"}', {"query": "has } brace"}),
        ("{n:1,query='report.docx'}", {"n": 1, "query": "report.docx"}),
        ("(query:ls -la)", {"query": "ls -la"}),
        ('({query:<|"|>x<|"|>})', {"query": "x"}),
        ('{{query:<|"|>x<|"|>}}', {"query": "x"}),
        ('{query:<|"|>x<|"|>', {"query": "x"}),
        ("{n:1", {"n": 1}),
        ("{n:1 query:x}", {"n": 1, "query": "x"}),
        ("{n:,query:x}", {"n": None, "query": "x"}),
        ("{tags:[1,2,query:x}", {"tags": [1, 2, "query:x"]}),
        ("{where:{a=1,b:{c:2},n:1}", {"where": {"a": 1, "b": {"c": 2}, "n": 1}}),
        ("{}", {}),
    ],
)
@pytest.mark.parametrize("prefix", ["call:", "call: ", ""])
def test_gemma_slip_yields_the_arguments(written: str, arguments: object, prefix: str):
    text = f"<|tool_call>{prefix}find{written}<tool_call|>"
    assert summarize(read_call("gemma4", text)) == [("call", "find", arguments)]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("query='it's', n=1", {"query": "it's", "n": 1}),
        ("query='say 'hi', x', n=1", {"query": "say 'hi', x", "n": 1}),
        ("query='f('x')', n=1", {"query": "f('x')", "n": 1}),
        ("query: 'x', n: 1", {"query": "x", "n": 1}),
        ("'x', n=1", {"n": 1}),
        ("query='x' n=1", {"query": "x", "n": 1}),
        ("**{'query': 'x', 'n': 1}", {"query": "x", "n": 1}),
        ('** {"query": "x"}, n=1', {"query": "x", "n": 1}),
        ("n=1, **{}, **dict(query='x')", {"n": 1, "query": "x"}),
        ("tags=[1 2], n=1", {"tags": [1, 2], "n": 1}),
        ("tags=[1, 2, n=1", {"tags": [1, 2, "n=1"]}),
        ("tags=[1, 2), n=1", {"tags": [1, 2]}),
        ("where={'a': 1, 'b'}, n=1", {"where": {"a": 1, "b": None}, "n": 1}),
    ],
)
def test_pythonic_slip_yields_the_arguments(written: str, arguments: object):
    text = f"<|tool_call_start|>[find({written})]<|tool_call_end|>"
    assert summarize(read_call("lfm2", text))[0] == ("call", "find", arguments)


@pytest.mark.parametrize("family", CONVERTED)
def test_end_of_answer_closes_arguments_but_limit_does_not(family: str):
    raw, _ = read_transcript(family)
    text = raw[: raw.index("Paris") + 3]
    stopped = [part for part in read_call(family, text) if part[0] == "call"]
    limited = [part for part in read_call(family, text, FinishReason.LENGTH) if part[0] == "call"]
    assert stopped == [("call", "get_weather", '{"city": "Par"}')]
    assert limited == [("call", "get_weather", '{"city": "Par')]


JSON_CALL = '{"name": "find", "arguments": {"query": "x"}}'


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("lfm2", f"<|tool_call_start|>[{JSON_CALL}]<|tool_call_end|>"),
        ("lfm2", f"<|tool_call_start|>{JSON_CALL}<|tool_call_end|>"),
        ("pythonic", f"<|python_start|>[{JSON_CALL}]<|python_end|>"),
        ("pythonic", "<|python_start|>[find(query='x')]<|python_end|>"),
        ("llama4_pythonic", f"<|python_start|>[{JSON_CALL}]<|python_end|>"),
        ("qwen3_coder", f"<tool_call>\n{JSON_CALL}\n</tool_call>"),
        ("glm47", f"<tool_call>{JSON_CALL}</tool_call>"),
        ("gemma4", f"<|tool_call>{JSON_CALL}<tool_call|>"),
        ("minimax_m2", f"<minimax:tool_call>\n{JSON_CALL}\n</minimax:tool_call>"),
        (
            "kimi_k2",
            f"<|tool_calls_section_begin|><|tool_call_begin|>{JSON_CALL}<|tool_call_end|>"
            "<|tool_calls_section_end|>",
        ),
    ],
)
def test_json_between_markers_of_family_is_call(family: str, text: str):
    assert read_call(family, text) == [("call", "find", '{"query": "x"}')]
    unknown = text.replace("find", "other")
    assert read_call(family, unknown) == [("text", unknown)]


def test_name_without_tags_in_prose_is_text():
    for family, text in (
        ("glm47", "Write <tool_call>find to call it."),
        ("qwen3_coder", "Write `<function=find>` to call it."),
    ):
        assert read_call(family, text) == [("text", text)]


@pytest.mark.parametrize(
    "end", ["</parameter>\n", "</parameter>\n</tool_call>\n", "</tool_call>\n", ""]
)
def test_broken_call_does_not_swallow_the_next(end: str):
    first = "<tool_call>\n<function=find>\n<parameter=query>\nx\n" + end
    assert read_call("qwen3_coder", first + qwen(QUERY)) == [
        ("call", "find", '{"query": "x"}'),
        ("call", "find", '{"query": "/a/t.py"}'),
    ]


def test_marker_token_inside_value_closes_arguments():
    pieces = ["<tool_call>", "find", "<arg_key>", "query", "</arg_key>", "<arg_value>", "x"]
    pieces += ["</tool_call>", "Done."]
    marks = tuple(piece for piece in pieces if piece.startswith("<"))
    deltas = [TextDelta(0, piece, (Token(1, piece),)) for piece in pieces]
    parser = tool_format("glm47", marks).create_parser(context(PLACE))
    assert shape(fold(parse(parser, deltas))) == [
        ("call", "find", '{"query": "x"}'),
        ("text", "Done."),
    ]


@pytest.mark.parametrize(
    ("family", "text", "skipped"),
    [
        ("qwen3_coder", qwen(QUERY + "</parameter> ok?\n"), "</parameter> ok?"),
        ("qwen3_coder", qwen("<parameter query=1>\n" + QUERY), "<parameter query=1>"),
        ("qwen3_coder", qwen(QUERY), ""),
        ("qwen3_coder", qwen('{"query": "x"}\n'), ""),
        ("lfm2", "<|tool_call_start|>[find('x', n=1 ok? tags=[1])]<|tool_call_end|>", "x ok?"),
        ("lfm2", "<|tool_call_start|>[find(query='x', and n=1)]<|tool_call_end|>", "and"),
        ("gemma4", '<|tool_call>call:find{query:<|"|>x<|"|>, oh n:1}<tool_call|>', "oh"),
        ("gemma4", "<|tool_call>call:find{query:x,n:1}<tool_call|>", ""),
    ],
)
def test_skipped_text_is_reported_in_any_cut(family: str, text: str, skipped: str):
    expected = f"tools: text between the arguments of a call of 'find' is skipped: {skipped!r}"
    for pieces in ([text], [*text]):
        parser = tool_format(family).create_parser(context(PLACE))
        events = parse(parser, [TextDelta(0, piece) for piece in pieces])
        (end,) = (event for event in events if isinstance(event, ChoiceFinished))
        assert end.warnings == ((expected,) if skipped else ())


def count_cases() -> dict[str, int]:
    """Return the number of parsed texts: slips, times three cuts and a vocabulary."""
    anywhere = sum(
        len(list_slips(family)) * (len(read_transcript(family)[0]) + 1) for family in FAMILIES
    )
    between = sum(len(list(insert_between_arguments(family))) for family in CONVERTED)
    return {
        "slips anywhere": anywhere,
        "parsed by default": anywhere // STRIDE * 4 + between // 4 * 2,
        "parsed in the long search": anywhere // LONG_STRIDE * 4 + between * 2,
    }


def test_slip_cases_cover_every_family():
    assert len(FAMILIES) >= 44
    assert len(TAG_FAMILIES) >= 14
    counts = count_cases()
    assert counts["slips anywhere"] > 500_000
    assert counts["parsed in the long search"] > 100_000


if __name__ == "__main__":
    print(count_cases())
