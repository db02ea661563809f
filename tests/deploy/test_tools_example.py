"""The compose example with MCP servers: its file is read, and its servers, replaced by
stubs with tools of the same names, are listed and called.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from openai.types.responses.response_output_item import McpCall, McpListTools
from tests.serving.tool_servers import build_tool_server

from dragoman.engines.scripted import CallTool, Say, ScriptEntry
from dragoman.launch.tool_servers import load_tool_file
from dragoman.serving.media_fetcher import is_public, resolve_addresses
from dragoman.settings import FIELDS
from dragoman.tools.mcp_servers import McpServers
from dragoman.tools.tool_file import ToolFile
from tests.loopback import serve_app

pytest.importorskip("mcp")

EXAMPLE = Path(__file__).parents[2] / "deploy/compose/tools"
STUB = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("time")
@server.tool()
def get_current_time(timezone: str) -> str:
    return f"noon in {timezone}"
server.run()
"""
TIMEOUT = 600.0
"""For the program's imports on a busy machine; the test does not wait for it."""


def build_http_stub() -> Any:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("everything")

    @server.tool()
    def echo(message: str) -> str:
        return f"Echo: {message}"

    return server.streamable_http_app()


def replace_servers(file: ToolFile, url: str) -> ToolFile:
    program = replace(
        file.servers["time"],
        command=sys.executable,
        args=("-c", STUB),
        connect_timeout=TIMEOUT,
        call_timeout=TIMEOUT,
    )
    remote = replace(file.servers["everything"], url=url)
    return replace(file, servers={"time": program, "everything": remote})


def test_tools_example_names_known_settings_and_files() -> None:
    services = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    server = services["dragoman"]
    variables = {f"DRAGOMAN_{field.name.upper()}" for field in FIELDS}
    assert server["environment"].keys() <= variables
    assert (EXAMPLE / server["volumes"][0].partition(":")[0]).is_file()
    url = load_tool_file(str(EXAMPLE / "tools.yaml"), {}).servers["everything"].url
    assert url == f"http://everything:{services['everything']['environment']['PORT']}/mcp"


async def test_tools_of_example_are_listed_and_called() -> None:
    calls = (
        CallTool("time__get_current_time", '{"timezone":"UTC"}'),
        CallTool("everything__echo", '{"message":"hi"}'),
    )
    tools: Any = [
        {"type": "mcp", "server_label": label, "require_approval": "never"}
        for label in ("time", "everything")
    ]
    with serve_app(build_http_stub()) as address:
        file = replace_servers(load_tool_file(str(EXAMPLE / "tools.yaml"), {}), f"{address}/mcp")
        servers = McpServers(file, resolve=resolve_addresses, is_public=is_public, now=lambda: 0.0)
        try:
            server = build_tool_server(
                ScriptEntry(calls), ScriptEntry((Say("Noon."),)), tool_servers=servers
            )
            response = await server.openai().responses.create(model="m", input="hi", tools=tools)
        finally:
            await servers.close()
    lists = [item for item in response.output if isinstance(item, McpListTools)]
    assert [tool.name for each in lists for tool in each.tools] == ["get_current_time", "echo"]
    results = [item.output for item in response.output if isinstance(item, McpCall)]
    assert results == ["noon in UTC", "Echo: hi"]
