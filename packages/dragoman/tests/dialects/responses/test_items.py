"""Input items become messages, and are rendered for the store."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from dragoman.core.errors import RequestError
from dragoman.core.message import (
    Audio,
    File,
    Image,
    InlineMedia,
    Message,
    Reasoning,
    Refusal,
    RemoteMedia,
    Role,
    Text,
    ToolCall,
    ToolResult,
    UploadedMedia,
)
from dragoman.core.request import Conversation
from dragoman.dialects.sealing import VerificationMode
from tests.pictures import PIXEL, PIXEL_URL

from ..sealing_key import ReadableSealingKey
from .bodies import (
    AGENTS,
    OPTIONS,
    SEALED,
    call,
    input_rows,
    read_error,
    read_responses,
    responses,
    turns,
    with_rows,
)

USER: dict[str, Any] = {"role": "user", "content": "hi"}
CALL: dict[str, Any] = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city":1.0}',
}
RESULT: dict[str, Any] = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "content": None}


GOAL: dict[str, Any] = {
    "type": "function_call_output",
    "id": "fco_1",
    "name": "goal_objective",
    "namespace": "agent",
    "output": "be good",
}
"""An output without a call, as Codex 0.169 adds it to its history after a goal is set.
"""


def test_output_without_call_becomes_user_message():
    (message,) = turns(GOAL)
    assert message.role is Role.USER
    assert "".join(part.text for part in message.parts if isinstance(part, Text)).endswith(
        "be good"
    )
    assert any("goal_objective" in part.text for part in message.parts if isinstance(part, Text))


def test_output_without_call_is_stored_without_call_id():
    (item,) = input_rows(GOAL)
    assert "call_id" not in item
    assert (item["name"], item["namespace"], item["output"]) == (
        "goal_objective",
        "agent",
        "be good",
    )


def test_string_input_becomes_user_message():
    assert turns({"role": "user", "content": "hello"}) == (Message(Role.USER, (Text("hello"),)),)
    assert (
        responses().call.requests
        == responses(input=[{"role": "user", "content": "hello"}]).call.requests
    )


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
def test_message_roles_are_parsed_with_and_without_type(role: str):
    for type in ({}, {"type": "message"}, {"type": None}):
        message: dict[str, Any] = {
            **type,
            "role": role,
            "content": [{"type": "input_text", "text": "hi"}],
            "status": None,
        }
        assert turns(message) == (Message(Role(role), (Text("hi"),)),)


def test_instructions_become_first_system_message():
    first, second = turns({"role": "developer", "content": "b"}, instructions="a")
    assert (first, second) == (
        Message(Role.SYSTEM, (Text("a"),)),
        Message(Role.DEVELOPER, (Text("b"),)),
    )


def test_output_items_of_one_response_form_one_turn():
    thought = {**THOUGHT, "content": [{"type": "reasoning_text", "text": "hm"}]}
    message = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me see."}],
    }
    turn, result, after = turns(thought, message, CALL, RESULT, USER)
    assert turn.parts == (
        Reasoning("hm"),
        Text("Let me see."),
        ToolCall("c1", "weather", '{"city":1.0}'),
    )
    assert result == Message(Role.TOOL, (ToolResult("c1", (Text("sunny"),)),), "weather")
    assert after.role is Role.USER


def test_consecutive_assistant_messages_are_separate_turns():
    message = {"role": "assistant", "content": "a"}
    assert [len(turn.parts) for turn in turns(message, message, CALL)] == [1, 2]


def test_content_parts_of_every_type_are_parsed():
    image, remote, stored, old, file, data, link, audio = turns(
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": PIXEL_URL},
                {
                    "type": "input_image",
                    "image_url": "https://x/y.png",
                    "detail": "high",
                    "file_id": None,
                },
                {"type": "input_image", "file_id": "file-1"},
                {"type": "input_image", "image_url": {"url": "https://x", "detail": "low"}},
                {"type": "input_file", "file_id": "file-1"},
                {
                    "type": "input_file",
                    "file_data": "data:application/pdf;base64,AA==",
                    "filename": "a.pdf",
                },
                {"type": "input_file", "file_url": "https://x/a.pdf"},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            ],
        }
    )[0].parts
    assert image == Image(InlineMedia(PIXEL, "image/png"), "auto")
    assert remote == Image(RemoteMedia("https://x/y.png"), "high")
    assert stored == Image(UploadedMedia("file-1"), "auto")
    assert old == Image(RemoteMedia("https://x"), "low")
    assert file == File(UploadedMedia("file-1"))
    assert data == File(InlineMedia(b"\0", "application/pdf"), "a.pdf")
    assert link == File(RemoteMedia("https://x/a.pdf"))
    assert audio == Audio(InlineMedia(b"\0", "audio/wav"), "wav")


def test_assistant_refusal_is_preserved():
    rejected = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert turns(rejected)[0].parts == (Refusal("no"),)
    assert turns({**rejected, "role": "user"})[0].parts == (Text("no"),)
    assert input_rows(rejected)[0]["content"] == [{"type": "refusal", "refusal": "no"}]
    assert input_rows({**rejected, "role": "user"})[0]["content"] == [
        {"type": "input_text", "text": "no"}
    ]


def test_custom_tool_call_and_output_are_parsed():
    custom_call = {
        "type": "custom_tool_call",
        "call_id": "c1",
        "name": "run",
        "input": 'print("hi")',
        "id": None,
    }
    turn, result = turns(
        custom_call, {"type": "custom_tool_call_output", "call_id": "c1", "output": "hi"}
    )
    assert turn.parts == (ToolCall("c1", "run", 'print("hi")', custom=True),)
    assert result.parts == (ToolResult("c1", (Text("hi"),)),)


def test_function_arguments_are_replayed_verbatim():
    bad = {**CALL, "arguments": '{"city": '}
    invalid_call = {**CALL, "arguments": {"city": 1}}
    assert [
        part.arguments
        for turn in turns(bad, invalid_call)
        for part in turn.parts
        if isinstance(part, ToolCall)
    ] == [
        '{"city": ',
        '{"city":1}',
    ]


def test_function_call_with_only_id_is_parsed():
    assert turns({**CALL, "call_id": None, "id": "fc_1"})[0].parts[0] == ToolCall(
        "fc_1", "weather", '{"city":1.0}'
    )


def test_namespaced_call_regains_joined_name():
    grouped = {**CALL, "name": "close_agent", "namespace": "multi_agent_v1"}
    bare = {**CALL, "name": "close_agent"}
    gone = {**CALL, "name": "find", "namespace": "crm"}
    names = [
        part.name
        for part in turns(grouped, bare, gone, tools=[AGENTS])[0].parts
        if isinstance(part, ToolCall)
    ]
    assert names == ["multi_agent_v1__close_agent", "multi_agent_v1__close_agent", "crm__find"]


def test_reasoning_item_uses_content_or_summary():
    reasoning = {
        "content": [{"type": "reasoning_text", "text": "c"}],
        "summary": [{"type": "summary_text", "text": "s"}],
    }
    assert turns({**THOUGHT, **reasoning})[0].parts == (Reasoning("c"),)
    assert turns({**THOUGHT, **reasoning, "content": None, "encrypted_content": "x"})[0].parts == (
        Reasoning("s"),
    )
    two = [{"type": "summary_text", "text": text} for text in "ab"]
    assert turns({**THOUGHT, "summary": two})[0].parts == (Reasoning("a\n\nb"),)


def test_unreadable_reasoning_is_skipped_with_warning():
    parsed = call(input=[{**THOUGHT, "encrypted_content": "x"}, USER])
    assert parsed.warnings == (
        "input[0]: its encrypted reasoning cannot be read here; it was left out",
    )
    assert turns({**THOUGHT, "encrypted_content": "x"}, USER) == turns(USER)
    assert call(input=[THOUGHT, USER]).warnings == ()


def test_encrypted_reasoning_takes_precedence_with_key():
    body = b'{"input":[{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"encrypted_content":"%s"}]}'  # noqa: E501
    for sealed, thought in (
        (b"reasoning:mine", "mine"),
        (b"foreign", "s"),
        (b"compaction:mine", "s"),
    ):
        parsed = read_responses(
            body % sealed, msgspec.structs.replace(OPTIONS, sealing_key=ReadableSealingKey())
        )
        continued = with_rows(parsed, parsed.input[0].render("1")).call.requests[0].prompt
        assert isinstance(continued, Conversation)
        (message,) = continued.messages
        assert message.parts == (Reasoning(thought),)


@pytest.mark.parametrize("visible", [[], [{"type": "summary_text", "text": "s"}]])
def test_strict_mode_rejects_foreign_reasoning_by_name(visible: list[object]):
    item = {"type": "reasoning", "summary": visible, "encrypted_content": "foreign"}
    body = json.dumps({"input": [USER, item]}).encode()
    with pytest.raises(RequestError, match="not created by this server") as rejected:
        read_responses(
            body,
            msgspec.structs.replace(
                OPTIONS, sealing_key=ReadableSealingKey(VerificationMode.STRICT)
            ),
        )
    assert rejected.value.param == "input[1].encrypted_content"
    (warning,) = read_responses(
        body, msgspec.structs.replace(OPTIONS, sealing_key=ReadableSealingKey())
    ).call.warnings
    assert warning.endswith("replaced by its visible content" if visible else "left out")


def test_items_without_call_are_skipped_with_warning():
    listed: dict[str, Any] = {
        "type": "mcp_list_tools",
        "id": "mcpl_1",
        "server_label": "s",
        "tools": [],
    }
    parsed = call(input=[listed, {"type": "program_output", "output": {"type": "x"}}, USER])
    assert len(parsed.warnings) == 1
    assert turns(listed, USER) == turns(USER)
    assert input_rows(listed, USER)[0] == listed


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([{"content": "x"}], "input[0].type"),
        ([USER, {"role": "critic", "content": "x"}], "input[1].role"),
        ([{"type": "message", "content": "x"}], "input[0].role"),
        ([{"role": "user", "content": None}], "input[0].content"),
        ([{"role": "user", "content": {"a": 1}}], "input[0].content"),
        ([{"role": "user", "content": [{"text": "x"}]}], "input[0].content[0].type"),
        (
            [{"role": "user", "content": [{"type": "video", "text": "x"}]}],
            "input[0].content[0].type",
        ),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0].image_url"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///x"}]}],
            "input[0].content[0].image_url",
        ),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "input[0].content[0].file_data"),
        ([{**CALL, "call_id": None}], "input[0].call_id"),
        ([{**CALL, "name": None}], "input[0].name"),
        ([{**CALL, "arguments": 7}], "input[0].arguments"),
        ([{**RESULT, "call_id": None}], "input[0].call_id"),
        ([{**RESULT, "output": None}], "input[0].output"),
        ([{**RESULT, "output": {"a": 1}}], "input[0].output"),
        ([{"type": "telepathy"}], "input[0].type"),
        ([{"type": "item_reference"}], "input[0].id"),
        ([{"type": "compaction", "id": "x"}], "input[0].encrypted_content"),
    ],
)
def test_invalid_item_error_names_field(items: list[object], param: str):
    assert read_error(input=items).param == param


def test_stored_rows_match_sdk_types():
    image = {"type": "input_image", "image_url": PIXEL_URL}
    listed = {**RESULT, "output": [{"type": "input_text", "text": "x"}, image]}
    thought = {
        **THOUGHT,
        "content": [{"type": "reasoning_text", "text": "x"}],
        "encrypted_content": "b",
    }
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "x"}
    output = {"type": "custom_tool_call_output", "call_id": "c2", "output": "x"}
    compacted = {"type": "compaction", "encrypted_content": "compaction:x"}
    message = {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}],
    }
    user = {"role": "user", "content": ["hi", image, {"type": "input_file", "file_id": "f"}]}
    any_item: TypeAdapter[ResponseItem] = TypeAdapter(ResponseItem)
    found = input_rows(
        USER,
        user,
        message,
        thought,
        CALL,
        RESULT,
        listed,
        custom,
        output,
        compacted,
        options=SEALED,
    )
    for row in found:
        any_item.validate_python(row, strict=True)
    assert [row["id"] for row in found[:4]] == ["msg_1_in0", "msg_1_in1", "msg_1_in2", "rs_1"]
    assert all(row["status"] == "completed" for row in found if row["type"] != "compaction")


@pytest.mark.parametrize(
    ("kind", "status", "stored"),
    [
        ("shell_call", "bogus", "completed"),
        ("shell_call", None, "completed"),
        ("shell_call", "incomplete", "incomplete"),
        ("web_search_call", "failed", "failed"),
    ],
)
def test_stored_tool_rows_have_valid_status(kind: str, status: str | None, stored: str):
    (row,) = input_rows(
        {"type": kind, "call_id": "c", "action": {"commands": ["ls"]}, "status": status}
    )
    assert row["status"] == stored


def test_stored_message_beside_hosted_item_has_type():
    user, search = input_rows(
        {"role": "user", "content": "hi"}, {"type": "file_search_call", "id": "fs", "queries": []}
    )
    assert (user["type"], user["status"], user["content"][0]["text"]) == (
        "message",
        "completed",
        "hi",
    )
    assert search == {"type": "file_search_call", "id": "fs", "queries": []}


def test_stored_rows_keep_unique_client_ids():
    first, second = input_rows(
        {**USER, "id": "msg_x", "status": "incomplete"}, {**USER, "id": "msg_x", "status": "?"}
    )
    assert (first["id"], first["status"]) == ("msg_x", "incomplete")
    assert (second["id"], second["status"]) == ("msg_1_in1", "completed")
