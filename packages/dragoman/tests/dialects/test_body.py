"""Malformed bodies: always a short RequestError that names the error."""

from __future__ import annotations

import json
import time
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import RequestError
from dragoman.dialects.chat import read_chat
from dragoman.dialects.completions.reader import read_completions

from .bodies import HELLO, OPTIONS

HEAD = b'{"messages":[{"role":"user","content":"x"}],'


def read_error(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_chat(body, OPTIONS)
    assert caught.value.status == 400
    assert len(caught.value.message) < 1_000
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"3",
        b'"x"',
        b"\xff\xfe",
        b'{"messages":[]}x',
        b'\xef\xbb\xbf{"messages":[]}',
        HEAD + b'"seed":NaN}',
        HEAD + b'"temperature":Infinity}',
        HEAD + b'"temperature":-Infinity}',
        HEAD + b'"user":"\xff"}',
        HEAD + b'"stop":"\xed\xa0\x80"}',
        HEAD + b'"stop":"\\ud8fe"}',
        HEAD + b'"unknown":"\\ud8fe"}',
    ],
)
def test_invalid_json_body_is_rejected(body: bytes):
    assert read_error(body).param in (None, "messages")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", "1.9"),
        ("n", "1.0"),
        ("n", '"3"'),
        ("n", "true"),
        ("n", "0"),
        ("n", "-1"),
        ("n", "1e2"),
        ("n", "129"),
        ("n", "9" * 1_000_000),
        ("seed", "9223372036854775808"),
        ("seed", "9" * 1_000_000),
        ("temperature", "9" * 1_000_000),
        ("temperature", "1e999"),
        ("temperature", "2.1"),
        ("temperature", "-0.1"),
        ("temperature", "true"),
        ("top_p", "1.01"),
        ("top_k", "2147483648"),
        ("min_p", "-1"),
        ("presence_penalty", "-3"),
        ("frequency_penalty", "3"),
        ("repetition_penalty", "0"),
        ("max_tokens", "0"),
        ("max_tokens", "-2"),
        ("max_completion_tokens", "0"),
        ("top_logprobs", "21"),
        ("stream", '"yes"'),
        ("stop", "3"),
        ("stop", '[""]'),
        ("stop", "[null]"),
        ("logit_bias", '{"1": 101}'),
        ("logit_bias", '{"one": 1}'),
        ("logit_bias", '{"-1": 1}'),
        ("allowed_token_ids", "[]"),
        ("allowed_token_ids", "[-1]"),
        ("bad_words", '[""]'),
        ("truncate_prompt_tokens", "0"),
        ("cache_salt", '""'),
        ("request_id", '"a b"'),
        ("request_id", '"a\\n"'),
        ("priority", "9223372036854775808"),
        ("kv_transfer_params", "[]"),
        ("metadata", '{"a": 1}'),
        ("reasoning_effort", '"huge"'),
        ("service_tier", '"gold"'),
        ("verbosity", '"loud"'),
    ],
)
def test_out_of_range_value_is_rejected_by_name(field: str, value: str):
    error = read_error(HEAD + f'"{field}":{value}}}'.encode())
    assert error.param in (field, f"{field}[0]")
    assert field in error.message


def test_nested_field_error_has_openai_path():
    error = read_error(json.dumps({"messages": [*HELLO, {"role": "user", "content": 3}]}).encode())
    assert error.param == "messages[1].content"
    assert error.message == (
        "Invalid type for 'messages[1].content': expected a string or an array, but got an "
        "integer instead."
    )


def test_missing_field_error_names_field():
    assert read_error(b"{}").message == "Missing required parameter: 'messages'."
    assert read_error(b'{"messages":[{"content":"x"}]}').param == "messages[0].role"


@pytest.mark.parametrize(
    "hole", ["[" * 100_000 + "]" * 100_000, '{"a":' * 129 + "1" + "}" * 129, "[" * 5_000]
)
@pytest.mark.parametrize(
    "field", ["unknown", "chat_template_kwargs", "metadata", "messages", "stop"]
)
def test_body_nesting_depth_is_limited(hole: str, field: str):
    assert "128 levels" in read_error(HEAD + f'"{field}":{hole}}}'.encode()).message


def test_brackets_in_strings_do_not_count_as_depth():
    text = "[{" * 500 + '\\"' + "[" * 200 + "\\\\"
    read_chat(json.dumps({"messages": [{"role": "user", "content": text}]}).encode(), OPTIONS)


def test_ordinary_nesting_depth_is_accepted():
    schema: dict[str, object] = {"type": "string"}
    for _ in range(50):
        schema = {"type": "object", "properties": {"a": schema}}
    read_chat(
        json.dumps({"messages": HELLO, "chat_template_kwargs": schema, "x": [[[]]] * 200}).encode(),
        OPTIONS,
    )


@pytest.mark.parametrize(
    "unit", [b"[]", b'[[{"a":[]}]]', b"[" * 120 + b"]" * 120, b'"[\\\\"', b'"\\""']
)
def test_body_parse_time_is_linear_in_size(unit: bytes):
    """A megabyte that is the worst case of the depth check takes well under a second."""
    body = HEAD + b'"x":[' + b",".join([unit] * (1_000_000 // len(unit))) + b"]}"
    before = time.process_time()
    read_chat(body, OPTIONS)
    assert time.process_time() - before < 2


def test_body_parse_time_is_linear_in_message_count():
    """Each result searches its call among 20,000 open ones with other names."""
    call = '{"role":"assistant","function_call":{"name":"a"}}'
    result = '{"role":"function","name":"b","content":"x"}'
    body = f'{{"messages":[{",".join([call] * 20_000 + [result] * 20_000)}]}}'.encode()
    before = time.process_time()
    read_chat(body, OPTIONS)
    assert time.process_time() - before < 3


def test_body_container_count_is_limited():
    assert "1000000 arrays" in read_error(HEAD + b'"x":[' + b"[]," * 1_000_001 + b"[]]}").message


@given(
    st.recursive(
        st.text('[]{}"\\a', max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text('[]{}"\\', max_size=3), inner, max_size=3)
        ),
        max_leaves=20,
    ),
    st.integers(120, 130),
)
def test_body_nesting_depth_is_counted_exactly(inner: object, around: int):
    text = json.dumps(inner)
    deep = depth(inner) + around + 1 > 128
    body = HEAD + (f'"pad":{[[]] * 130},"x":' + "[" * around + text + "]" * around + "}").encode()
    try:
        read_chat(body, OPTIONS)
    except RequestError:
        assert deep
    else:
        assert not deep


def depth(value: object) -> int:
    if isinstance(value, list | dict):
        inner = (
            cast(dict[str, object], value).values()
            if isinstance(value, dict)
            else cast(list[object], value)
        )
        return 1 + max(map(depth, inner), default=0)
    return 0


def test_error_does_not_echo_huge_value():
    huge = "x" * 1_000_000
    for body in (
        {"messages": [{"role": huge, "content": ""}]},
        {"messages": HELLO, "tool_choice": huge},
        {"messages": HELLO, "tools": [{"type": "function", "function": {"name": huge}}]},
        {"messages": HELLO, "logit_bias": {huge: 1}},
        {"messages": HELLO, "metadata": {huge: ""}},
        {"messages": HELLO, "stop": [huge, ""]},
        {"messages": HELLO, "response_format": {"type": huge}},
        {"messages": [{"role": "user", "content": [{"type": huge}]}]},
    ):
        read_error(json.dumps(body).encode())


def test_completions_body_errors_match_chat():
    with pytest.raises(RequestError, match="expected an integer, but got a boolean") as caught:
        read_completions(b'{"prompt":"x","max_tokens":true}', OPTIONS)
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize(
    "half",
    [
        r"\ud83d",
        r"\ud83dx",
        r"\ude00",
        r"\ud83d\ud83d\ude00",
        r"\ud83d\\ude00",
        r"\ude00\ud83d\ude00",
    ],
)
def test_unpaired_surrogate_is_rejected(half: str):
    message = read_error(
        b'{"messages":[{"role":"user","content":"\\ud83d\\ude00 %s"}]}' % half.encode()
    ).message
    assert message == "A string in the body contains an unpaired surrogate."
