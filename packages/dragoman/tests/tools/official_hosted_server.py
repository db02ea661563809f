"""A server of the official MCP package with a tool for each hosted tool of Responses that
returns more than text.
"""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import Image, MCPServer

PNG = b"\x89PNG\r\n\x1a\n"
server = MCPServer("hosted")


@server.tool()
def find(query: str, vector_store_ids: list[str], max_num_results: int = 1) -> list[dict[str, Any]]:
    """Find files."""
    text = f"{query} in {', '.join(vector_store_ids)}"
    return [{"filename": f"{i}.md", "text": text} for i in range(max_num_results)]


@server.tool()
def draw(prompt: str, size: str = "auto") -> Image:
    """Draw an image."""
    return Image(data=PNG + f"{prompt} {size}".encode(), format="png")


@server.tool()
def run(commands: list[str]) -> dict[str, Any]:
    """Run commands, in appearance."""
    outputs = [{"stdout": f"ran {each}", "stderr": "", "exit_code": 0} for each in commands]
    return {"output": outputs}
