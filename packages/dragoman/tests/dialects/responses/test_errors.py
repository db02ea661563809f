"""Errors have the field names of Responses, including errors that are raised after the
reader.
"""

from __future__ import annotations

import json

import pytest

from dragoman.core.errors import ContextTooLong, RequestError, Unsupported
from dragoman.dialects.interfaces import Profile
from dragoman.dialects.responses import render_responses_error


@pytest.mark.parametrize(
    ("param", "expected"),
    [
        ("messages", "input"),
        ("messages[0].content", "input[0].content"),
        ("max_tokens", "max_output_tokens"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("response_format", "text.format"),
        ("tools[2].function.parameters", "tools[2].parameters"),
        ("tools[2].custom", "tools[2].format"),
        ("tool_choice", "tool_choice"),
        ("input[0]", "input[0]"),
        (None, None),
    ],
)
def test_error_param_uses_responses_field_names(param: str | None, expected: str | None):
    error = json.loads(
        render_responses_error(RequestError(f"Invalid value for '{param}': no.", param=param))
    )["error"]
    assert (error["param"], error["message"]) == (expected, f"Invalid value for '{expected}': no.")


def test_error_code_and_type_are_preserved():
    error = json.loads(render_responses_error(Unsupported("x", param="messages")))["error"]
    assert (error["code"], error["type"]) == ("unsupported_parameter", "invalid_request_error")
    full = ContextTooLong(limit=4, prompt=5, param="messages")
    assert json.loads(render_responses_error(full))["error"]["code"] == "context_length_exceeded"
    assert json.loads(render_responses_error(full, Profile.VLLM))["error"]["code"] == 400
