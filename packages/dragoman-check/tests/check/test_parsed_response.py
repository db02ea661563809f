"""Calls of a Messages stream, as `fold_message` accumulates them."""

from __future__ import annotations

import pytest

from dragoman_check.parsed_response import fold_message
from dragoman_check.rules.json_values import Violation

from ..rules.test_anthropic import (
    CALL,
    START,
    STOP,
    build_delta,
    build_message_delta,
    encode_events,
    start_block,
    stop_block,
)


def build_stream(text: str, reason: str) -> bytes:
    delta = build_delta("input_json_delta", partial_json=text)
    events = (START, start_block(CALL), delta, stop_block(), build_message_delta(reason), STOP)
    return encode_events(*events)


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        ("", "tool_use", "{}"),
        ('{"a":1}', "tool_use", '{"a": 1}'),
        ('{"a":1}', "max_tokens", '{"a": 1}'),
        ('{"a":', "max_tokens", '{"a":'),
    ],
)
def test_fold_message_keeps_truncated_input(text: str, reason: str, expected: str) -> None:
    assert fold_message(build_stream(text, reason)).calls == [("f", expected)]


def test_fold_message_rejects_invalid_json_input() -> None:
    with pytest.raises(Violation, match="the input of a call is not JSON"):
        fold_message(build_stream('{"a":', "tool_use"))
