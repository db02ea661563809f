"""Calls of hosted tools stay in the conversation, with what can be read of their results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.dialects.responses.bodies import call

from dragoman.core.message import Message, Role, Text, ToolCall, ToolResult
from dragoman.core.request import Conversation
from dragoman.dialects.responses.item_reader import HOSTED_TYPES

USER: dict[str, Any] = {"role": "user", "content": "hi"}
NO_RESULT = "The result of this call is not part of the conversation."
FAILED = "The call failed."
SEARCH = {"type": "search", "query": "x", "queries": ["x"]}

CALLS: dict[str, list[tuple[dict[str, Any], str, dict[str, Any], str, bool]]] = {
    "mcp_call": [
        ({"name": "f", "arguments": '{"a":1}', "output": "two"}, "f", {"a": 1}, "two", False),
        ({"name": "f", "arguments": "{}", "error": "no"}, "f", {}, "no", True),
        (
            {"name": "f", "arguments": "{}", "error": {"type": "http_error", "message": "no"}},
            "f",
            {},
            "no",
            True,
        ),
        ({"name": "f", "arguments": "{}", "output": None}, "f", {}, NO_RESULT, False),
    ],
    "web_search_call": [
        (
            {"action": {**SEARCH, "sources": [{"type": "url", "url": "https://a"}]}},
            "web_search",
            {"query": "x", "queries": ["x"]},
            "https://a",
            False,
        ),
        ({"action": {"query": "x"}}, "web_search", {"query": "x"}, NO_RESULT, False),
        (
            {"action": {"type": "open_page", "url": "https://a"}, "status": "failed"},
            "web_search",
            {"url": "https://a"},
            FAILED,
            True,
        ),
    ],
    "file_search_call": [
        (
            {"queries": ["q"], "results": [{"filename": "a.md", "text": "A"}, {"text": "B"}]},
            "file_search",
            {"queries": ["q"]},
            "a.md\nA\n\nB",
            False,
        ),
        ({"queries": ["q"], "results": None}, "file_search", {"queries": ["q"]}, NO_RESULT, False),
    ],
    "code_interpreter_call": [
        (
            {"code": "1+1", "outputs": [{"type": "logs", "logs": "2"}], "container_id": "c"},
            "code_interpreter",
            {"code": "1+1"},
            "2",
            False,
        ),
        (
            {"code": "plot()", "outputs": [{"type": "image", "url": "https://a"}]},
            "code_interpreter",
            {"code": "plot()"},
            "[an image: https://a]",
            False,
        ),
    ],
    "image_generation_call": [
        (
            {"result": "aGk=", "revised_prompt": "a cat"},
            "image_generation",
            {"prompt": "a cat"},
            "[an image]",
            False,
        ),
        (
            {"result": None, "error": {"code": None, "message": "no", "param": None, "type": "x"}},
            "image_generation",
            {},
            "no",
            True,
        ),
    ],
}
WITHOUT_CALL = {"mcp_approval_request", "mcp_approval_response", "mcp_list_tools"}
IN_TWO_ITEMS = {"program", "program_output"}


def read(*items: dict[str, Any]) -> tuple[Message, ...]:
    prompt = call(input=[USER, *items, USER]).requests[0].prompt
    assert isinstance(prompt, Conversation)
    return prompt.messages[1:-1]


def test_every_hosted_type_has_a_case() -> None:
    assert CALLS.keys() | WITHOUT_CALL | IN_TWO_ITEMS == set(HOSTED_TYPES)


@pytest.mark.parametrize(
    ("kind", "index"), [(kind, i) for kind, cases in CALLS.items() for i in range(len(cases))]
)
def test_hosted_call_becomes_call_with_result(kind: str, index: int) -> None:
    fields, name, arguments, result, is_error = CALLS[kind][index]
    calling, answer = read({"type": kind, "id": "h_1", "status": "completed", **fields})
    (tool_call,) = calling.parts
    assert isinstance(tool_call, ToolCall)
    assert (tool_call.id, tool_call.name, json.loads(tool_call.arguments)) == (
        "h_1",
        name,
        arguments,
    )
    assert answer == Message(
        Role.TOOL, (ToolResult("h_1", (Text(result),), is_error=is_error),), name
    )


@pytest.mark.parametrize(
    "item",
    [
        {"type": "mcp_call", "name": "f", "arguments": "{}", "output": ""},
        {"type": "web_search_call", "action": {**SEARCH, "sources": []}},
        {"type": "file_search_call", "queries": ["q"], "results": []},
        {"type": "code_interpreter_call", "code": "1", "outputs": []},
        {"type": "code_interpreter_call", "code": "1", "outputs": [{"type": "logs", "logs": ""}]},
    ],
)
def test_hosted_call_with_empty_result_says_so(item: dict[str, Any]) -> None:
    for status, expected in (("completed", "The call returned nothing."), ("failed", FAILED)):
        _, answer = read({"id": "h_1", "status": status, **item})
        assert isinstance(answer.parts[0], ToolResult)
        assert answer.parts[0].content == (Text(expected),)


def test_hosted_call_stays_between_texts_of_its_answer() -> None:
    searched = {"type": "web_search_call", "id": "ws", "action": SEARCH, "status": "completed"}
    text = {"type": "message", "role": "assistant", "content": "It is so."}
    roles = [message.role for message in read(searched, text)]
    assert roles == [Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]


def test_program_and_its_output_are_call_and_result() -> None:
    program = {"type": "program", "id": "p_1", "call_id": "c", "code": "f()", "fingerprint": "x"}
    output = {"type": "program_output", "id": "po_1", "call_id": "c", "result": "3"}
    calling, answer = read(program, output)
    assert calling.parts == (ToolCall("c", "program", '{"code":"f()"}'),)
    assert isinstance(answer.parts[0], ToolResult)
    assert answer.parts[0].content == (Text("3"),)


@pytest.mark.parametrize("kind", sorted(WITHOUT_CALL))
def test_hosted_item_without_call_is_left_out_with_warning(kind: str) -> None:
    assert read({"type": kind, "id": "x", "name": "f", "arguments": "{}", "tools": []}) == ()
    (warning,) = call(input=[USER, {"type": kind, "id": "x"}, USER]).warnings
    assert kind in warning


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "mcp_call", "arguments": "{}"},
        {"type": "file_search_call", "queries": "q"},
        {"type": "code_interpreter_call", "code": 1, "outputs": {}},
        {"type": "web_search_call", "action": "search"},
    ],
)
def test_hosted_call_of_other_shape_is_left_out_with_warning(fields: dict[str, Any]) -> None:
    assert read({**fields, "id": "x"}) == ()
    assert len(call(input=[USER, {**fields, "id": "x"}, USER]).warnings) == 1


def test_left_out_image_is_named_in_warning() -> None:
    image = {"type": "image_generation_call", "id": "x", "result": "aGk=", "status": "completed"}
    assert call(input=[USER, image, USER]).warnings == ("input[1].result: the image was left out",)
