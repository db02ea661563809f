"""Results of tools directly follow their calls in every conversation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.message import Message, Part, Role, Text, ToolCall, ToolResult
from dragoman.core.request import Conversation


def say(text: str, role: Role = Role.USER) -> Message:
    return Message(role, (Text(text),))


def call(*ids: str) -> Message:
    return Message(Role.ASSISTANT, tuple(ToolCall(id, "f", "{}") for id in ids))


def answer(id: str, text: str = "1") -> Message:
    return Message(Role.TOOL, (ToolResult(id, (Text(text),)),), "f")


def order(*messages: Message) -> tuple[Message, ...]:
    return Conversation(messages).messages


def test_ordered_conversation_stays_as_it_is() -> None:
    messages = (say("a"), call("1", "2"), answer("2"), answer("1"), say("b"), call("3"))
    assert order(*messages) == messages


def test_message_between_call_and_result_follows_result() -> None:
    assert order(say("a"), call("1"), say("b"), answer("1"), say("c")) == (
        say("a"),
        call("1"),
        answer("1"),
        say("b"),
        say("c"),
    )


def test_message_between_two_results_follows_both() -> None:
    assert order(call("1", "2"), answer("1"), say("b"), answer("2")) == (
        call("1", "2"),
        answer("1"),
        answer("2"),
        say("b"),
    )


def test_results_of_several_turns_follow_their_own_calls() -> None:
    assert order(call("1"), call("2"), answer("2"), answer("1")) == (
        call("1"),
        answer("1"),
        call("2"),
        answer("2"),
    )


def test_missing_result_leaves_other_results_in_order() -> None:
    assert order(call("1", "2"), say("b"), answer("2")) == (
        call("1", "2"),
        answer("2"),
        say("b"),
    )


def test_repeated_id_means_latest_call() -> None:
    messages = (call("1"), answer("1", "x"), say("b"), call("1"), answer("1", "y"))
    assert order(*messages) == messages


def test_result_without_earlier_call_stays() -> None:
    messages = (say("a"), answer("9"), call("9"))
    assert order(*messages) == messages


def test_results_within_one_message_are_separated() -> None:
    both: tuple[Part, ...] = (Text("b"), *answer("1").parts, Text("c"), *answer("2").parts)
    assert order(call("1", "2"), Message(Role.USER, both)) == (
        call("1", "2"),
        Message(Role.USER, answer("1").parts),
        Message(Role.USER, answer("2").parts),
        say("b"),
        say("c"),
    )


STEPS = st.lists(st.sampled_from(["call", "answer", "say"]), max_size=12)


@given(STEPS)
def test_no_message_stands_between_call_and_result(steps: list[str]) -> None:
    messages: list[Message] = []
    pending: list[str] = []
    for i, step in enumerate(steps):
        if step == "call":
            pending.append(f"c{i}")
            messages.append(call(f"c{i}", f"d{i}"))
        elif step == "answer" and pending:
            messages.append(answer(pending.pop(0)))
        else:
            messages.append(say(str(i)))
    ordered = order(*messages)
    assert sorted(map(str, ordered)) == sorted(map(str, messages))
    assert order(*ordered) == ordered
    calls: set[str] = set()
    for message in ordered:
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        assert all(result.call_id in calls for result in results)
        if not results:
            calls = {part.id for part in message.parts if isinstance(part, ToolCall)}
