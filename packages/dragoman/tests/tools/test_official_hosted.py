"""Hosted tools of Responses on a server of the official MCP package."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from openai.types.responses import ResponseFileSearchToolCall, ResponseFunctionShellToolCallOutput
from openai.types.responses.response_output_item import ImageGenerationCall
from tests.serving.tool_servers import build_tool_server

from dragoman.core.server_tools import HostedTarget
from dragoman.engines.scripted import CallTool, Say, ScriptEntry
from dragoman.serving.media_fetcher import is_public, resolve_addresses
from dragoman.serving.serving_options import ServingOptions
from dragoman.tools.mcp_servers import McpServers
from dragoman.tools.tool_file import ServerEntry, ToolFile
from tests.loopback import serve_app

pytest.importorskip("mcp")

OPTIONS = ServingOptions(
    hosted_tools={
        "file_search": HostedTarget("official", "find"),
        "image_generation": HostedTarget("official", "draw"),
        "shell": HostedTarget("official", "run"),
    }
)
CALLS = ScriptEntry(
    (
        CallTool("file_search", '{"query":"weather"}'),
        CallTool("image_generation", '{"prompt":"a cat"}'),
        CallTool("shell", '{"commands":["ls","pwd"]}'),
    )
)
TOOLS: Any = [
    {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 2},
    {"type": "image_generation", "size": "64x64"},
    {"type": "shell", "environment": {"type": "container_auto"}},
]


async def test_official_server_runs_hosted_tools() -> None:
    from .official_hosted_server import PNG
    from .official_hosted_server import server as official

    with serve_app(official.streamable_http_app()) as address:
        file = ToolFile(servers={"official": ServerEntry(url=f"{address}/mcp")})
        servers = McpServers(file, resolve=resolve_addresses, is_public=is_public, now=lambda: 0.0)
        try:
            answer = ScriptEntry((Say("See 1.md."),))
            server = build_tool_server(CALLS, answer, tool_servers=servers, options=OPTIONS)
            response = await server.openai().responses.create(
                model="m", input="hi", tools=TOOLS, include=["file_search_call.results"]
            )
        finally:
            await servers.close()
    search, image, _, output, message = response.output
    assert isinstance(search, ResponseFileSearchToolCall)
    assert [(file.filename, file.text) for file in search.results or ()] == [
        ("0.md", "weather in vs_1"),
        ("1.md", "weather in vs_1"),
    ]
    assert isinstance(image, ImageGenerationCall)
    assert base64.b64decode(image.result or "") == PNG + b"a cat 64x64"
    assert isinstance(output, ResponseFunctionShellToolCallOutput)
    assert [each.stdout for each in output.output] == ["ran ls", "ran pwd"]
    assert message.type == "message"
