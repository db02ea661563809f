"""Tools that OpenAI defines and the client runs: functions for the model, items of
their own types for the client.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from openai.types.responses import Response, ResponseItem, ResponseStreamEvent
from pydantic import TypeAdapter

from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from dragoman.core.message import (
    FunctionTool,
    Image,
    InlineMedia,
    Role,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from dragoman.core.request import Conversation, JsonSchema
from dragoman.dialects.responses import ResponsesCall
from tests.pictures import PIXEL_URL

from ...laws.responses_sdk import ResponsesSdk
from .bodies import (
    HEADER,
    WEATHER,
    call,
    conversation,
    events,
    input_rows,
    read_error,
    render_full,
    request,
    responses,
    turns,
    with_rows,
)

JsonObject = dict[str, Any]
SEARCH: JsonObject = {
    "type": "tool_search",
    "execution": "client",
    "description": "d",
    "parameters": {"type": "object"},
}
PREVIEW: JsonObject = {
    "type": "computer_use_preview",
    "display_width": 800,
    "display_height": 600,
    "environment": "browser",
}
PATCH: JsonObject = {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b\n"}
CLICK: JsonObject = {"type": "click", "button": "left", "x": 1, "y": 2}

CASES: list[tuple[JsonObject, str, JsonObject, str, JsonObject]] = [
    (
        {"type": "shell"},
        "shell",
        {"commands": ["ls -l", "echo '\u2028'"], "timeout_ms": 5},
        "shell_call",
        {
            "action": {"commands": ["ls -l", "echo '\u2028'"], "timeout_ms": 5},
            "environment": {"type": "local"},
        },
    ),
    (
        {"type": "local_shell"},
        "local_shell",
        {"command": ["ls"], "working_directory": "/"},
        "local_shell_call",
        {"action": {"type": "exec", "command": ["ls"], "env": {}, "working_directory": "/"}},
    ),
    (
        {"type": "apply_patch"},
        "apply_patch",
        {"operation": PATCH},
        "apply_patch_call",
        {"operation": PATCH},
    ),
    (
        {"type": "apply_patch"},
        "apply_patch",
        {"operation": {"type": "delete_file", "path": "x"}},
        "apply_patch_call",
        {"operation": {"type": "delete_file", "path": "x"}},
    ),
    (
        {"type": "computer"},
        "computer",
        {"actions": [CLICK, {"type": "screenshot"}, {"type": "drag", "path": [{"x": 1, "y": 2}]}]},
        "computer_call",
        {
            "actions": [
                CLICK,
                {"type": "screenshot"},
                {"type": "drag", "path": [{"x": 1, "y": 2}]},
            ],
            "pending_safety_checks": [],
        },
    ),
    (
        PREVIEW,
        "computer",
        {"action": CLICK},
        "computer_call",
        {"action": CLICK, "pending_safety_checks": []},
    ),
    (
        SEARCH,
        "tool_search",
        {"q": 1},
        "tool_search_call",
        {"arguments": {"q": 1}, "execution": "client"},
    ),
]
IDS = [f"{kind}-{i}" for i, (_, _, _, kind, _) in enumerate(CASES)]


def answer(
    name: str, arguments: str, reason: FinishReason = FinishReason.STOP
) -> tuple[Event, ...]:
    pieces = (ToolCallDelta(0, arguments[:7]), ToolCallDelta(0, arguments[7:]))
    return (
        Started(1),
        ToolCallStart(0, "call_1", name),
        *pieces,
        ChoiceFinished(0, reason),
        Finished(Usage(1, 2)),
    )


@pytest.mark.parametrize(("tool", "name", "arguments", "kind", "fields"), CASES, ids=IDS)
def test_client_tool_call_item_is_equal_streamed_and_full(
    tool: JsonObject, name: str, arguments: JsonObject, kind: str, fields: JsonObject
):
    request = call(tools=[tool])
    reply = answer(name, json.dumps(arguments))
    assert request.warnings == request.unknown == ()
    item = render_full(request, *reply)["output"][0]
    assert item == {
        "id": item["id"],
        "type": kind,
        "status": "completed",
        "call_id": "call_1",
        **fields,
    }
    stream = events(request, *reply)
    assert stream[-1]["response"] == render_full(request, *reply)
    any_event: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
    for event in stream:
        any_event.validate_json(json.dumps(event), strict=True)
    Response.model_validate_json(json.dumps(render_full(request, *reply)), strict=True)


@pytest.mark.parametrize(("tool", "name", "arguments", "kind", "fields"), CASES, ids=IDS)
def test_sdk_folds_client_tool_stream_into_full_item(
    tool: JsonObject, name: str, arguments: JsonObject, kind: str, fields: JsonObject
):
    writer = call(tools=[tool]).writer(HEADER)
    stream = (
        b"".join(writer.feed(event) for event in answer(name, json.dumps(arguments))) + writer.end
    )
    last, _ = ResponsesSdk().response(stream)
    (item,) = last.output
    assert item.type == kind
    rebuilt = item.to_dict(exclude_none=True)
    assert rebuilt.items() >= fields.items()


@pytest.mark.parametrize(("tool", "name", "arguments", "kind", "fields"), CASES, ids=IDS)
def test_replayed_tool_call_equals_model_call(
    tool: JsonObject, name: str, arguments: JsonObject, kind: str, fields: JsonObject
):
    parsed = call(tools=[tool])
    item = render_full(parsed, *answer(name, json.dumps(arguments)))["output"][0]
    (message,) = turns(item, tools=[tool])
    (part,) = message.parts
    assert isinstance(part, ToolCall)
    assert (part.id, part.name) == ("call_1", name)
    assert {**json.loads(part.arguments), "env": {}} == {**arguments, "env": {}}
    (row,) = input_rows(item, tools=[tool])
    assert row == item
    item_type: TypeAdapter[ResponseItem] = TypeAdapter(ResponseItem)
    item_type.validate_json(json.dumps(row), strict=True)


@pytest.mark.parametrize(("tool", "name", "arguments", "kind", "fields"), CASES, ids=IDS)
def test_client_tool_function_schema_matches_item(
    tool: JsonObject, name: str, arguments: JsonObject, kind: str, fields: JsonObject
):
    (function,) = conversation(tools=[tool]).tools
    assert isinstance(function, FunctionTool)
    assert function.name == name
    assert function.description
    schema = json.loads(function.parameters or "")
    assert jsonschema_rs.is_valid(schema, arguments)
    assert jsonschema_rs.is_valid(schema, {"x": 1}) == (kind == "tool_search_call")


def test_shell_call_streams_commands():
    stream = events(
        call(tools=[{"type": "shell"}]), *answer("shell", '{"commands": ["ls", "pwd"]}')
    )
    assert [
        (event["type"], event.get("command", event.get("delta")))
        for event in stream
        if "command" in event["type"]
    ] == [
        ("response.shell_call_command.added", ""),
        ("response.shell_call_command.delta", "ls"),
        ("response.shell_call_command.done", "ls"),
        ("response.shell_call_command.added", ""),
        ("response.shell_call_command.delta", "pwd"),
        ("response.shell_call_command.done", "pwd"),
    ]
    (added,) = [event["item"] for event in stream if event["type"] == "response.output_item.added"]
    assert added["action"] == {"commands": []}


@pytest.mark.parametrize(
    "arguments", ['{"commands": ["rm -rf', '{"commands": "ls"}', "", "[]", '{"commands": [1]}']
)
def test_malformed_shell_arguments_become_function_call(arguments: str):
    request = call(tools=[{"type": "shell"}])
    reply = answer("shell", arguments, FinishReason.LENGTH)
    item = render_full(request, *reply)["output"][0]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "shell", arguments)
    assert item["status"] == "incomplete"
    assert events(request, *reply)[-1]["response"] == render_full(request, *reply)


def test_function_with_same_name_renames_client_tool():
    tools = [{"type": "shell"}, {"type": "function", "name": "shell"}]
    assert [tool.name for tool in conversation(tools=tools).tools] == ["shell", "shell_2"]
    assert (
        render_full(call(tools=tools), *answer("shell", "{}"))["output"][0]["type"]
        == "function_call"
    )
    assert (
        render_full(call(tools=tools), *answer("shell_2", '{"commands": []}'))["output"][0]["type"]
        == "shell_call"
    )


def test_client_tools_are_echoed_unchanged():
    local = {
        "type": "local",
        "skills": [{"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}],
    }
    tools = [
        {"type": "shell", "environment": local},
        {"type": "apply_patch"},
        PREVIEW,
        SEARCH,
        {"type": "local_shell"},
    ]
    assert render_full(call(tools=tools), *answer("x", "{}"))["tools"] == tools
    shell = conversation(tools=tools).tools[0]
    assert shell.description is not None
    assert "Skill pdf in /skills/pdf: Reads PDFs." in shell.description


def test_server_side_tools_are_skipped_with_warning():
    container = {"type": "shell", "environment": {"type": "container_auto"}}
    parsed = call(
        tools=[
            container,
            {"type": "tool_search"},
            {"type": "shell", "allowed_callers": ["programmatic"]},
            {"type": "shell", "environment": "local"},
        ]
    )
    assert len(parsed.warnings) == 4


@pytest.mark.parametrize(
    ("tool", "choice", "name"),
    [
        ({"type": "shell"}, {"type": "shell"}, "shell"),
        ({"type": "apply_patch"}, {"type": "apply_patch"}, "apply_patch"),
        ({"type": "computer"}, {"type": "computer_use"}, "computer"),
        (PREVIEW, {"type": "computer_use_preview"}, "computer"),
    ],
)
def test_tool_choice_selects_client_tool(tool: JsonObject, choice: JsonObject, name: str):
    assert conversation(tools=[tool], tool_choice=choice).tool_choice == ToolChoice(
        "required", (name,), is_named=True
    )
    assert (
        render_full(call(tools=[tool], tool_choice=choice), *answer(name, "{}"))["tool_choice"]
        == choice
    )
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [choice]}
    assert conversation(tools=[tool], tool_choice=allowed).tool_choice == ToolChoice(
        "auto", (name,)
    )


def get_prompt(parsed: ResponsesCall) -> Conversation:
    (generate_request,) = parsed.call.requests
    assert isinstance(generate_request.prompt, Conversation)
    return generate_request.prompt


SHELL_CALL: JsonObject = {
    "type": "shell_call",
    "call_id": "c",
    "action": {"commands": ["ls"], "timeout_ms": None},
}


def get_result(*items: JsonObject) -> ToolResult:
    *_, message = turns(*items)
    assert message.role is Role.TOOL
    (part,) = message.parts
    assert isinstance(part, ToolResult)
    assert part.call_id == "c"
    return part


def test_shell_output_is_parsed():
    chunks = [
        {"stdout": "a\nb\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
        {"stdout": "", "stderr": "oh", "outcome": {"type": "timeout"}},
    ]
    result = get_result(
        SHELL_CALL,
        {"type": "shell_call_output", "call_id": "c", "output": chunks, "max_output_length": 9},
    )
    assert result.content == (Text("a\nb\n[exit code 0]\noh\n[timed out]"),)


def test_local_shell_output_is_matched_by_either_id():
    run = {
        "type": "local_shell_call",
        "id": "i",
        "call_id": "c",
        "status": "completed",
        "action": {"command": ["ls"]},
    }
    for names in ({"id": "c"}, {"id": "x", "call_id": "c"}):
        output = {"type": "local_shell_call_output", "output": '{"output":"a"}', **names}
        assert get_result(run, output).content == (Text('{"output":"a"}'),)


def test_apply_patch_output_is_parsed():
    patch = {"type": "apply_patch_call", "call_id": "c", "status": "completed", "operation": PATCH}
    output = {"type": "apply_patch_call_output", "call_id": "c"}
    assert get_result(patch, {**output, "status": "completed", "output": "ok"}).content == (
        Text("ok"),
    )
    assert get_result(patch, {**output, "status": "completed"}).content == (
        Text("The patch was applied."),
    )
    assert get_result(patch, {**output, "status": "failed", "output": "no"}).is_error


def test_computer_screenshot_becomes_image():
    computer_call: JsonObject = {
        "type": "computer_call",
        "call_id": "c",
        "id": "i",
        "action": CLICK,
        "pending_safety_checks": [],
    }
    screen = {"type": "computer_screenshot", "image_url": PIXEL_URL}
    (image,) = get_result(
        computer_call, {"type": "computer_call_output", "call_id": "c", "output": screen}
    ).content
    assert isinstance(image, Image)
    assert isinstance(image.source, InlineMedia)


def test_tool_search_output_adds_callable_tools():
    found = [WEATHER, {"type": "namespace", "name": "crm", "description": "d", "tools": [WEATHER]}]
    searched: JsonObject = {
        "type": "tool_search_call",
        "call_id": "c",
        "execution": "client",
        "arguments": {"query": "rain"},
    }
    output: JsonObject = {
        "type": "tool_search_output",
        "call_id": "c",
        "execution": "client",
        "tools": found,
    }
    prompt = conversation(input=[searched, output], tools=[SEARCH])
    assert [tool.name for tool in prompt.tools] == ["tool_search", "weather", "crm__weather"]
    assert get_result(searched, output).content == (Text("Loaded tools: weather, crm__weather"),)
    parsed = call(
        input=[searched, output],
        tools=[SEARCH],
        tool_choice={"type": "function", "name": "weather"},
    )
    item = render_full(parsed, *answer("crm__weather", "{}"))["output"][0]
    assert (item["name"], item["namespace"]) == ("weather", "crm")
    assert render_full(parsed, *answer("weather", "{}"))["tools"] == [SEARCH]


def test_stored_tool_search_output_adds_callable_tools():
    output: JsonObject = {
        "type": "tool_search_output",
        "call_id": "c",
        "execution": "client",
        "tools": [WEATHER],
    }
    searched: JsonObject = {
        "type": "tool_search_call",
        "call_id": "c",
        "execution": "client",
        "arguments": {},
    }
    rows = [
        json.dumps({"id": str(i), **item}).encode() for i, item in enumerate((searched, output))
    ]
    prompt = get_prompt(with_rows(responses(tools=[SEARCH]), *rows))
    assert [tool.name for tool in prompt.tools] == ["tool_search", "weather"]


def test_additional_tools_item_adds_callable_tools():
    items = [
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [WEATHER, {"type": "apply_patch"}],
        }
    ]
    assert [tool.name for tool in conversation(input=items).tools] == ["weather", "apply_patch"]
    assert conversation(input=[*items, *items], tools=[WEATHER]).tools[0].name == "weather"


def test_last_configuration_update_applies():
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    low = {
        "type": "configuration_update",
        "reasoning": {"effort": "low"},
        "text": {"format": schema},
    }
    high = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    user = {"role": "user", "content": "x"}
    parsed = responses(input=[low, user, high], reasoning={"effort": "medium", "summary": "auto"})
    (generate_request,) = parsed.call.requests
    assert get_prompt(parsed).reasoning.effort == "high"
    assert isinstance(generate_request.constraint, JsonSchema)
    response = render_full(parsed.call, *answer("x", "{}"))
    assert response["reasoning"] == {"effort": "high", "summary": "auto"}
    assert response["text"]["format"]["name"] == "n"
    plain = {"type": "configuration_update", "text": {"format": {"type": "text"}}}
    assert request(input=[low, user, plain]).constraint is None
    stored = [json.dumps({"id": str(i), **item}).encode() for i, item in enumerate((high, user))]
    assert get_prompt(with_rows(responses(), *stored)).reasoning.effort == "high"
    assert input_rows(high)[0].items() >= high.items()


REFUSED: list[tuple[JsonObject, str]] = [
    ({"input": [{"type": "configuration_update"}]}, "input[0].reasoning"),
    (
        {"input": [{"type": "configuration_update", "reasoning": {"effort": "x"}}]},
        "input[0].reasoning.effort",
    ),
    ({"input": [{"type": "configuration_update", "text": 1}]}, "input[0].text"),
    ({"input": [{"type": "shell_call", "call_id": "c"}]}, "input[0].action"),
    ({"input": [{"type": "shell_call", "action": {"commands": []}}]}, "input[0].call_id"),
    (
        {"input": [{"type": "apply_patch_call", "call_id": "c", "operation": 1}]},
        "input[0].operation",
    ),
    ({"input": [{"type": "computer_call", "call_id": "c"}]}, "input[0].actions"),
    ({"input": [{"type": "computer_call", "call_id": "c", "actions": 1}]}, "input[0].actions"),
    ({"input": [{"type": "shell_call_output", "call_id": "c"}]}, "input[0].output"),
    ({"input": [{"type": "shell_call_output", "output": "x"}]}, "input[0].call_id"),
    (
        {"input": [{"type": "computer_call_output", "call_id": "c", "output": {}}]},
        "input[0].output.image_url",
    ),
    ({"input": [{"type": "tool_search_output", "call_id": "c"}]}, "input[0].tools"),
    ({"input": [{"type": "tool_search_output", "call_id": "c", "tools": [1]}]}, "input[0].tools"),
    ({"tools": [{"type": "shell"}, {"type": "shell"}]}, "tools[1].type"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_invalid_client_tool_error_names_field(fields: JsonObject, param: str):
    assert read_error(**fields).param == param


def test_unknown_fields_of_items_and_tools_are_reported():
    parsed = call(
        input=[{**SHELL_CALL, "foo": 1}, {"role": "user", "content": "x"}],
        tools=[{"type": "computer", "bar": 1}],
    )
    assert set(parsed.unknown) == {"input[0].foo", "tools[0].bar"}
