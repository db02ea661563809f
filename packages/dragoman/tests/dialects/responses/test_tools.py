"""Tools, groups of them and tool choice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.core.errors import Unsupported
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
from dragoman.core.message import CustomTool, FunctionTool, ToolChoice

from .bodies import AGENTS, WEATHER, call, conversation, events, read_error, render_full, responses

RUN: dict[str, Any] = {
    "type": "custom",
    "name": "run",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"},
}
SPAWN = "multi_agent_v1__spawn_agent"
CLOSE = "multi_agent_v1__close_agent"
TOOLS = [WEATHER, RUN, AGENTS]


def calls(name: str, *, custom: bool = False) -> tuple[Event, ...]:
    tool_call = (ToolCallStart(0, "call_1", name, custom=custom), ToolCallDelta(0, "{}"))
    return (Started(1), *tool_call, ChoiceFinished(0, FinishReason.STOP), Finished(Usage(1, 2)))


def test_function_and_custom_tools_are_parsed():
    weather, run = conversation(tools=[{**WEATHER, "strict": True, "description": "d"}, RUN]).tools
    assert weather == FunctionTool("weather", "d", '{"type":"object"}', True)
    assert run == CustomTool("run", None, "lark", "start: /a/")
    assert conversation(
        tools=[{"type": "custom", "name": "x", "format": {"type": "text"}}]
    ).tools == (CustomTool("x"),)
    assert conversation(tools=[{"type": "function", "name": "x", "parameters": None}]).tools == (
        FunctionTool("x"),
    )


def test_namespace_tools_have_joined_names_and_description():
    spawn, close = conversation(tools=[AGENTS]).tools
    assert isinstance(spawn, FunctionTool)
    assert (spawn.name, spawn.description) == (
        SPAWN,
        "[multi_agent_v1: Other agents.]\n\nStart one.",
    )
    assert close == FunctionTool(CLOSE, None, '{"type":"object"}', True)


def test_joined_tool_name_is_unique():
    clash = {"type": "function", "name": CLOSE}
    names = [tool.name for tool in conversation(tools=[AGENTS, clash]).tools]
    assert names == [CLOSE, SPAWN, CLOSE + "_2"]
    (_, _, item, *_) = events(call(tools=[AGENTS, clash]), *calls(CLOSE + "_2"))
    assert (item["item"]["name"], item["item"]["namespace"]) == ("close_agent", "multi_agent_v1")


def test_namespace_accepts_custom_and_hosted_tools():
    group = {**AGENTS, "tools": [{"type": "web_search"}, RUN]}
    request = call(tools=[group])
    assert len(request.warnings) == 1
    item = render_full(request, *calls("multi_agent_v1__run", custom=True))["output"][0]
    assert item == {
        "id": "ctc_1_0", "type": "custom_tool_call", "status": "completed", "call_id": "call_1",
        "name": "run",
        "namespace": "multi_agent_v1", "input": "{}",
    }  # fmt: skip


def test_declared_tools_are_echoed_without_hosted_tools():
    tools = render_full(call(tools=[{"type": "web_search"}, *TOOLS]), *calls("weather"))["tools"]
    assert tools[0] == {**WEATHER, "description": None, "strict": None}
    assert tools[1] == {**RUN, "description": None}
    assert [tool["name"] for tool in tools[2]["tools"]] == ["spawn_agent", "close_agent"]
    assert tools[2]["type"] == "namespace"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        (
            {"type": "function", "name": "weather"},
            ToolChoice("required", ("weather",), is_named=True),
        ),
        ({"type": "custom", "name": "run"}, ToolChoice("required", ("run",), is_named=True)),
        (
            {"type": "function", "name": "close_agent", "namespace": "multi_agent_v1"},
            ToolChoice("required", (CLOSE,), is_named=True),
        ),
        (
            {"type": "function", "name": "close_agent"},
            ToolChoice("required", (CLOSE,), is_named=True),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "weather"}],
            },
            ToolChoice("required", ("weather",)),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "namespace", "name": "multi_agent_v1"}],
            },
            ToolChoice("auto", (SPAWN, CLOSE)),
        ),
    ],
)
def test_tool_choice_forms_are_parsed_and_echoed(choice: object, expected: ToolChoice):
    assert conversation(tools=TOOLS, tool_choice=choice).tool_choice == expected
    assert render_full(call(tools=TOOLS, tool_choice=choice), *calls("weather"))["tool_choice"] == (
        choice or "auto"
    )


def test_allowed_tools_with_hosted_tool_gives_warning():
    allowed = [{"type": "function", "name": "weather"}, {"type": "mcp", "server_label": "x"}]
    request = call(
        tools=[WEATHER], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": allowed}
    )
    assert len(request.warnings) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{**WEATHER, "parameters": "x"}]}, "tools[0].parameters"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
        ({"tools": [{**AGENTS, "name": None}]}, "tools[0].name"),
        ({"tools": [{**AGENTS, "tools": [WEATHER, WEATHER]}]}, "tools[0].tools[1].name"),
        (
            {"tools": [{**RUN, "format": {"type": "grammar", "syntax": "lark"}}]},
            "tools[0].format.definition",
        ),
        (
            {"tools": [{**RUN, "format": {"type": "grammar", "syntax": "x", "definition": "y"}}]},
            "tools[0].format.syntax",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [RUN], "tool_choice": {"type": "function", "name": "run"}}, "tool_choice.name"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "tool_choice.tools",
        ),
        ({"tool_choice": {"type": "allowed_tools", "mode": "x", "tools": []}}, "tool_choice.mode"),
    ],
)
def test_invalid_tool_error_names_field(fields: dict[str, Any], param: str):
    assert read_error(**fields).param == param


def test_required_hosted_tool_is_rejected():
    error = read_error(tools=[{"type": "web_search"}], tool_choice={"type": "web_search"})
    assert isinstance(error, Unsupported)
    assert error.param == "tool_choice"


def test_parallel_tool_calls_is_parsed():
    assert conversation(parallel_tool_calls=False).parallel_tool_calls is False
    assert conversation(parallel_tool_calls=None).parallel_tool_calls is True


def test_undeclared_call_keeps_name():
    item = render_full(responses().call, *calls("a__b"))["output"][0]
    assert json.dumps(item).count("namespace") == 0
    assert item["name"] == "a__b"
