"""Servers of the official MCP package, over stdio and streamable HTTP, in Responses."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types.beta import BetaMCPToolResultBlock, BetaMCPToolUseBlock, BetaMessage
from openai.types.responses.response_output_item import McpApprovalRequest, McpCall, McpListTools
from tests.serving.tool_servers import build_tool_server

from dragoman.engines.scripted import CallTool, Say, ScriptEntry
from dragoman.serving.media_fetcher import is_public, resolve_addresses
from dragoman.tools.mcp_servers import McpServers
from dragoman.tools.tool_file import ServerEntry, ToolFile
from tests.loopback import serve_app

pytest.importorskip("mcp")

PROGRAM = Path(__file__).parent / "official_server.py"
FREE: Any = {"type": "mcp", "server_label": "weather", "require_approval": "never"}
STRICT: Any = {"type": "mcp", "server_label": "weather"}
END = ScriptEntry((Say("It is sunny."),))
TIMEOUT = 600.0
"""For the program's imports on a busy machine; none of the tests waits for it."""


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    from .official_server import server

    with serve_app(server.streamable_http_app()) as address:
        yield f"{address}/mcp"


@asynccontextmanager
async def run_servers(file: ToolFile) -> AsyncGenerator[McpServers]:
    servers = McpServers(file, resolve=resolve_addresses, is_public=is_public, now=lambda: 0.0)
    try:
        yield servers
    finally:
        await servers.close()


@pytest.fixture(params=["stdio", "http", "named"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def build_file(kind: str, url: str) -> ToolFile:
    if kind == "stdio":
        entry = ServerEntry(
            command=sys.executable,
            args=(str(PROGRAM),),
            connect_timeout=TIMEOUT,
            call_timeout=TIMEOUT,
        )
        return ToolFile(servers={"weather": entry})
    if kind == "http":
        entry = ServerEntry(url=url, connect_timeout=TIMEOUT, call_timeout=TIMEOUT)
        return ToolFile(servers={"weather": entry})
    return ToolFile(allowed_urls=(url,), allow_private_addresses=True)


async def test_official_server_serves_calls_and_approvals(kind: str, url: str) -> None:
    where = {"server_url": url} if kind == "named" else {}
    calls = (
        CallTool("weather__look", '{"city":"Bern"}'),
        CallTool("weather__fail"),
        CallTool("weather__look", '{"town":1}'),
    )
    entries = (ScriptEntry(calls), END, ScriptEntry((CallTool("weather__send", '{"text":"x"}'),)))
    async with run_servers(build_file(kind, url)) as servers:
        server = build_tool_server(*entries, END, tool_servers=servers)
        client = server.openai().responses
        first = await client.create(model="m", input="hi", tools=[FREE | where])
        tools = first.output[0]
        assert isinstance(tools, McpListTools)
        assert [tool.name for tool in tools.tools] == ["look", "send", "fail"]
        results = [item for item in first.output if isinstance(item, McpCall)]
        assert results[0].output == "It is sunny in Bern."
        assert [item.status for item in results] == ["completed", "failed", "failed"]
        assert first.output_text == "It is sunny."
        second = await client.create(model="m", input="hi", tools=[STRICT | where])
        request = second.output[-1]
        assert isinstance(request, McpApprovalRequest)
        answer: Any = {
            "type": "mcp_approval_response", "approval_request_id": request.id, "approve": True,
        }  # fmt: skip
        third = await client.create(
            model="m", input=[answer], previous_response_id=second.id, tools=[STRICT | where]
        )
        (sent,) = [item for item in third.output if isinstance(item, McpCall)]
        assert (sent.output, sent.approval_request_id) == ("sent x", request.id)


# The two forms of Anthropic's documentation, newest first.
@pytest.mark.parametrize(
    ("beta", "server_fields", "fields"),
    [
        (
            "mcp-client-2025-11-20",
            {},
            {"tools": [{"type": "mcp_toolset", "mcp_server_name": "example-mcp"}]},
        ),
        (
            "mcp-client-2025-04-04",
            {"tool_configuration": {"enabled": True, "allowed_tools": ["look", "fail"]}},
            {},
        ),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_official_server_serves_messages(
    url: str, beta: str, server_fields: Any, fields: Any, streamed: bool
) -> None:
    calls = (CallTool("example-mcp__look", '{"city":"Bern"}'), CallTool("example-mcp__fail"))
    example: Any = {"type": "url", "url": url, "name": "example-mcp", "authorization_token": "T"}
    request: dict[str, Any] = {
        "model": "m",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": "What is the weather in Bern?"}],
        "mcp_servers": [example | server_fields],
        "betas": [beta],
        **fields,
    }
    async with run_servers(build_file("named", url)) as servers:
        server = build_tool_server(ScriptEntry(calls), END, tool_servers=servers)
        client = anthropic.AsyncAnthropic(
            api_key="none", base_url="http://localhost", http_client=server.http(), max_retries=0
        )
        messages: Any = client.beta.messages
        message: BetaMessage
        if streamed:
            async with messages.stream(**request) as stream:
                message = await stream.get_final_message()
        else:
            message = await messages.create(**request)
    uses = [block for block in message.content if isinstance(block, BetaMCPToolUseBlock)]
    results = [block for block in message.content if isinstance(block, BetaMCPToolResultBlock)]
    assert [(use.name, use.server_name) for use in uses] == [
        ("look", "example-mcp"), ("fail", "example-mcp"),
    ]  # fmt: skip
    assert [result.tool_use_id for result in results] == [use.id for use in uses]
    assert [result.is_error for result in results] == [False, True]
    (part,) = results[0].content
    assert not isinstance(part, str)
    assert part.text == "It is sunny in Bern."
    assert message.content[-1].type == "text"
    assert message.stop_reason == "end_turn"
