"""An upstream's messages about its own failures stay in the log; those about a request
reach the client.
"""

from __future__ import annotations

import json
import logging

import pytest

from dragoman.core.errors import (
    ContextTooLong,
    EngineError,
    EngineTimeout,
    Overloaded,
    RequestError,
)
from dragoman.engines.upstream.errors import build_stream_error, parse_error
from dragoman.engines.upstream.wire import WireError

INTERNAL = "Traceback: /srv/vllm/engine.py failed on 10.0.0.7:5000, key sk-secret"


def body(message: str, **fields: object) -> bytes:
    return json.dumps(
        {"error": {"message": message, "type": "t", "param": None, "code": None, **fields}}
    ).encode()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(500, EngineError), (502, Overloaded), (503, Overloaded), (504, EngineTimeout)],
)
def test_parse_error_hides_and_logs_server_error_message(
    status: int, kind: type[EngineError], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        error = parse_error(status, body(INTERNAL, code="/srv/vllm"), None)
    assert type(error) is kind
    assert "srv" not in error.message + str(error.code)
    assert "10.0.0.7" not in error.message
    assert "/srv/vllm/engine.py" in caplog.text


@pytest.mark.parametrize("error", [INTERNAL, WireError(INTERNAL), WireError(INTERNAL, code=500)])
def test_build_stream_error_hides_message(error: str | WireError) -> None:
    built = build_stream_error(error)
    assert isinstance(built, EngineError)
    assert "srv" not in built.message


def test_parse_error_keeps_overloaded_code_and_retry_after() -> None:
    error = parse_error(503, body("full", code="overloaded"), "7")
    assert (error.code, error.retry_after) == ("overloaded", 7.0)


def test_parse_error_keeps_request_error_message_and_param() -> None:
    error = parse_error(400, body("`temperature` must be at most 2.", param="temperature"), None)
    assert type(error) is RequestError
    assert (error.message, error.param) == ("`temperature` must be at most 2.", "temperature")


def test_parse_error_ignores_character_counts_and_unknown_param() -> None:
    message = (
        "This model's maximum context length is 24 tokens. However, your prompt contains 800 "
        "characters (more than 168 "
        "characters, which is the upper bound for 24 input tokens). Please reduce the length of "
        "the input prompt."
    )
    body = json.dumps({"error": {"message": message, "param": "input_text", "code": 400}}).encode()
    error = parse_error(400, body, None)
    assert isinstance(error, RequestError)
    assert not isinstance(error, ContextTooLong)
    assert (error.message, error.param, error.code) == (message, None, "context_length_exceeded")
