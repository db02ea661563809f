"""Truncation of conversations: what is removed; no call loses its result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.message import Message, Role, Text, ToolCall, ToolResult
from dragoman.pipeline.prompt_truncation import find_droppable_turns

SYSTEM = Message(Role.SYSTEM, (Text("s"),))
USER = Message(Role.USER, (Text("u"),))
ANSWER = Message(Role.ASSISTANT, (Text("a"),))


def call(*ids: str) -> Message:
    return Message(Role.ASSISTANT, tuple(ToolCall(id, "f", "{}") for id in ids))


def result(id: str) -> Message:
    return Message(Role.TOOL, (ToolResult(id, (Text("r"),)),))


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([], []),
        ([USER], []),
        ([SYSTEM, USER, ANSWER, USER], [[1, 2]]),
        ([SYSTEM, USER, USER, ANSWER, SYSTEM, USER], [[1], [2, 3]]),
        # A long task: its question and its last step stay, the other steps are removed
        # one by one.
        ([USER, ANSWER, USER, call("1"), result("1"), call("2"), result("2"), call("3"),
        result("3")], 
         [[0, 1], [3, 4], [5, 6]]),
        ([USER, call("1", "2"), result("2"), result("1"), ANSWER], [[1, 2, 3]]),
        # A late result still belongs to its call, which is not removed before it.
        ([USER, call("1"), USER, result("1"), ANSWER], [[0, 1, 3]]),
        ([result("?"), USER], [[0]]),
    ],
)  # fmt: skip
def test_find_droppable_turns_returns_turns_in_order(
    messages: list[Message], turns: list[list[int]]
):
    assert find_droppable_turns(messages) == turns


IDS = st.sampled_from("abcd")
MESSAGES = st.one_of(
    st.sampled_from((SYSTEM, USER, ANSWER)), st.builds(call, IDS), st.builds(result, IDS)
)


@given(st.lists(MESSAGES), st.integers(0, 20))
def test_dropped_turns_include_results_and_keep_last_message(messages: list[Message], count: int):
    turns = find_droppable_turns(messages)
    gone = [index for turn in turns[:count] for index in turn]
    assert len(set(gone)) == len(gone)
    remaining = [message for index, message in enumerate(messages) if index not in gone]
    assert [message for message in remaining if message is SYSTEM] == [
        message for message in messages if message is SYSTEM
    ]
    spoken = [message for message in messages if message is not SYSTEM]
    assert [message for message in remaining if message is not SYSTEM][-1:] == spoken[-1:]
    assert (USER in remaining) == (USER in messages)
    # No result stays without its call.
    called = _calls(remaining)
    for index, message in enumerate(messages):
        if index not in gone and isinstance(part := message.parts[0], ToolResult):
            assert part.call_id in called or part.call_id not in _calls(messages[:index])


def _calls(messages: list[Message]) -> set[str]:
    return {part.id for message in messages for part in message.parts if isinstance(part, ToolCall)}
