"""Arguments of tool calls are streamed as complete values."""

from __future__ import annotations

import pytest

from dragoman.dialects.tool_input import MAX_DEPTH, ToolInputStreamer


def pieces(*texts: str, cut: bool = False) -> tuple[list[str], str]:
    """Return the output for each piece and for the end, and the whole."""
    taken = ToolInputStreamer()
    out = [*(taken.feed(text) for text in texts), taken.end(is_cut_off=cut)]
    return out, taken.value


def render_full(text: str, cut: bool = False) -> str:
    return pieces(text, cut=cut)[1]


def test_tool_input_streams_strings_and_buffers_other_values():
    out, value = pieces('{"na', 'me": "a', 'b"', ', "n": 1', '2, "t": tr', "ue}")
    assert out == ["{", '"name": "a', 'b"', "", ', "n": 12', ', "t": true', "}"]
    assert value == '{"name": "ab", "n": 12, "t": true}'


@pytest.mark.parametrize(
    "text", ["", " \n", "{}", " { } ", '{"a":{"b":[]}}', '{"a":"\\u00e9\\ud83d\\ude00 \\n"}']
)
def test_tool_input_keeps_valid_json_verbatim(text: str):
    assert render_full(text).strip() == text.strip() or (
        not text.strip() and render_full(text) == "{}"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": "x', '{"a": 1}'),
        ('{"a": [1, 2', '{"a": [1]}'),
        ('{"a": ["x", "y', '{"a": ["x"]}'),
        ('{"a": {"b', '{"a": {}}'),
        ('{"a": 12', "{}"),
        ('{"a', "{}"),
        ("", "{}"),
    ],
)
def test_tool_input_truncated_drops_incomplete_value(text: str, value: str):
    """An SDK that parses the pieces drops it too: no incomplete value becomes an
    argument.
    """
    assert render_full(text, cut=True) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'{"re": "\d+"}', r'{"re": "\\d+"}'),
        ('{"a": "x\ny\x01"}', r'{"a": "x\ny\u0001"}'),
        (r'{"a": "\ud83d."}', r'{"a": "\ufffd."}'),
        (r'{"a": "\ude00"}', r'{"a": "\ufffd"}'),
    ],
)
def test_tool_input_repairs_invalid_strings(text: str, value: str):
    assert render_full(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1]", r'{"INVALID_JSON":"[1]"}'),
        ('"text"', r'{"INVALID_JSON":"\"text\""}'),
        ("{'a': 1}", r"""{"INVALID_JSON":"{'a': 1}"}"""),
        ('{"a": 1', r'{"INVALID_JSON":"{\"a\": 1"}'),
        ('{"a": "x', r'{"a": "x","INVALID_JSON":"{\"a\": \"x"}'),
        (
            '{"a": [1, {"b": 2} nothing',
            r'{"a": [1, {"b": 2}],"INVALID_JSON":"{\"a\": [1, {\"b\": 2} nothing"}',
        ),
        ('{"a": {"b": [1 2', r'{"a": {"b": [1]},"INVALID_JSON":"{\"a\": {\"b\": [1 2"}'),
        ('{"a": 1} and so on', r'{"a": 1,"INVALID_JSON":"{\"a\": 1} and so on"}'),
        ("{} and so on", r'{"INVALID_JSON":"{} and so on"}'),
        ('{"a": NaN}', r'{"INVALID_JSON":"{\"a\": NaN}"}'),
        ('{"a": 01}', r'{"INVALID_JSON":"{\"a\": 01}"}'),
    ],
)
def test_tool_input_invalid_json_is_wrapped(text: str, value: str):
    assert render_full(text) == value


def test_tool_input_truncated_invalid_json_is_wrapped():
    assert render_full("{'a': 1", cut=True) == r"""{"INVALID_JSON":"{'a': 1"}"""


def test_tool_input_too_deep_or_long_is_wrapped():
    assert "INVALID_JSON" in render_full('{"a":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}")
    assert "INVALID_JSON" in render_full('{"a":' + "9" * 5_000 + "}")
    assert "INVALID_JSON" not in render_full(
        '{"a":' + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "}"
    )


@pytest.mark.parametrize(
    "text",
    ['{"a": "\\ud83d\\ude00 \\" x", "b": [1.5, -2e3, {"c": null}]}', '{"a" 1}', '{"a": "\\u12'],
)
def test_tool_input_is_independent_of_chunk_boundaries(text: str):
    alone = pieces(text)
    for at in range(len(text)):
        out, value = pieces(text[:at], text[at:])
        assert ("".join(out), value) == ("".join(alone[0]), alone[1])
    out, value = pieces(*text)
    assert ("".join(out), value) == ("".join(alone[0]), alone[1])
