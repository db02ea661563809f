"""A server of the official MCP package, over stdio as a program, or as an application."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("weather")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look(city: str) -> str:
    """Tell the weather of a city."""
    return f"It is sunny in {city}."


@server.tool()
def send(text: str) -> str:
    """Send a text."""
    return f"sent {text}"


@server.tool()
def fail() -> str:
    raise ValueError("no weather")


if __name__ == "__main__":
    server.run()
