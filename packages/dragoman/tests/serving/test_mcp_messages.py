"""Tools of MCP servers in Messages, through the official SDK."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from anthropic.types.beta import BetaMCPToolResultBlock, BetaMCPToolUseBlock, BetaMessage
from tests.serving.harness import ServerHarness
from tests.serving.tool_servers import LocalToolServers, build_tool_server

from dragoman.engines.scripted import CallTool, Say, ScriptEntry, Think

SERVER: Any = {"type": "url", "name": "weather", "url": "https://mcp.example/mcp"}
TOOLSET: Any = {"type": "mcp_toolset", "mcp_server_name": "weather"}
END = ScriptEntry((Say("It is sunny."),))


def build_client(server: ServerHarness) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        api_key="none", base_url="http://localhost", http_client=server.http(), max_retries=0
    )


def call(name: str, arguments: str = "{}") -> ScriptEntry:
    return ScriptEntry((Think("Hm."), CallTool(f"weather__{name}", arguments)))


async def create(server: ServerHarness, **fields: Any) -> BetaMessage:
    fields = {
        "messages": [{"role": "user", "content": "hi"}],
        "mcp_servers": [SERVER],
        "tools": [TOOLSET],
        **fields,
    }
    messages: Any = build_client(server).beta.messages
    return await messages.create(
        model="m", max_tokens=100, betas=["mcp-client-2025-11-20"], **fields
    )


async def stream(server: ServerHarness, **fields: Any) -> BetaMessage:
    messages: Any = build_client(server).beta.messages
    async with messages.stream(
        model="m",
        max_tokens=100,
        messages=[{"role": "user", "content": "hi"}],
        mcp_servers=[SERVER],
        **fields,
    ) as events:
        return await events.get_final_message()


async def test_messages_mcp_calls_run_until_turn_without_calls() -> None:
    servers = LocalToolServers()
    entries = (call("look", '{"city":"Bern"}'), call("fail"), END)
    message = await create(build_tool_server(*entries, tool_servers=servers))
    kinds = [block.type for block in message.content]
    turn = ["thinking", "mcp_tool_use", "mcp_tool_result"]
    assert kinds == [*turn, *turn, "text"]
    _, use, result, _, _, failed, _ = message.content
    assert isinstance(use, BetaMCPToolUseBlock)
    assert isinstance(result, BetaMCPToolResultBlock)
    assert isinstance(failed, BetaMCPToolResultBlock)
    assert (use.name, use.server_name, use.input) == ("look", "weather", {"city": "Bern"})
    assert result.tool_use_id == use.id
    assert (result.is_error, failed.is_error) == (False, True)
    assert message.stop_reason == "end_turn"
    assert [name for name, _ in servers.calls] == ["look", "fail"]
    assert servers.opened[0].server_url == "https://mcp.example/mcp"


async def test_messages_mcp_stream_folds_to_whole_message() -> None:
    entries = (call("look"), call("lose"), END)
    whole = await create(build_tool_server(*entries, tool_servers=LocalToolServers()), tools=[])
    streamed = await stream(build_tool_server(*entries, tool_servers=LocalToolServers()))
    ids = {"id", "tool_use_id", "signature"}
    assert [block.model_dump(exclude=ids) for block in streamed.content] == [
        block.model_dump(exclude=ids) for block in whole.content
    ]
    assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)


async def test_messages_mcp_history_can_be_sent_back() -> None:
    servers = LocalToolServers()
    server = build_tool_server(call("look"), END, END, tool_servers=servers)
    first = await create(server)
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": "again"},
    ]
    second = await create(server, messages=messages)
    assert second.content[-1].type == "text"
    assert len(servers.calls) == 1


async def test_messages_mcp_with_client_tool_ends_with_its_call() -> None:
    servers = LocalToolServers()
    entry = ScriptEntry((CallTool("weather__look"), CallTool("add", '{"a": 1}')))
    add: Any = {"name": "add", "input_schema": {"type": "object"}}
    server = build_tool_server(entry, tool_servers=servers)
    message = await create(server, tools=[add, TOOLSET])
    kinds = [block.type for block in message.content]
    assert kinds == ["mcp_tool_use", "mcp_tool_result", "tool_use"]
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOLSET | {"configs": {"look": {"enabled": False}}}]},
        {
            "tools": [
                TOOLSET
                | {"default_config": {"enabled": False}, "configs": {"send": {"enabled": True}}}
            ]
        },
        {
            "tools": [],
            "mcp_servers": [SERVER | {"tool_configuration": {"allowed_tools": ["send"]}}],
        },
    ],
)
async def test_messages_mcp_disabled_tool_cannot_be_forced(fields: Any) -> None:
    choice = {"type": "tool", "name": "weather__look"}
    server = build_tool_server(call("send"), END, tool_servers=LocalToolServers())
    with pytest.raises(anthropic.BadRequestError, match="not found"):
        await create(server, tool_choice=choice, **fields)
    choice = {"type": "tool", "name": "weather__send"}
    assert (await create(server, tool_choice=choice, **fields)).content


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": [TOOLSET | {"mcp_server_name": "other"}]}, "tools.0.mcp_server_name"),
        ({"tools": [TOOLSET, TOOLSET]}, "tools.1.mcp_server_name"),
        ({"tools": [TOOLSET | {"tools": [{"name": "look"}]}]}, "tools\\[0\\].tools"),
        ({"mcp_servers": [SERVER, SERVER]}, "mcp_servers.1.name"),
        ({"mcp_servers": [SERVER | {"type": "stdio"}]}, "mcp_servers.0.type"),
        ({"mcp_servers": [SERVER | {"tool_configuration": {}}]}, "remove it"),
        ({"mcp_servers": [SERVER | {"name": "down"}], "tools": []}, "The server is down"),
        ({"mcp_servers": [SERVER | {"name": "refused"}], "tools": []}, "not allowed"),
    ],
)
async def test_messages_mcp_invalid_use_names_field(fields: Any, reason: str) -> None:
    server = build_tool_server(END, tool_servers=LocalToolServers())
    with pytest.raises(anthropic.BadRequestError, match=reason):
        await create(server, **fields)


async def test_messages_mcp_without_tool_servers_is_rejected() -> None:
    with pytest.raises(anthropic.BadRequestError, match="--tools-file"):
        await create(build_tool_server(END))
