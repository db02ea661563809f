"""A program that speaks MCP on its pipes, and appends each call to the file that its
argument names.
"""

from __future__ import annotations

import json
import sys
from typing import Any

TOOLS = [
    {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "send", "inputSchema": {"type": "object"}},
]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "counting", "version": "1"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            call = f"{params['name']} {params['arguments']['job']};"
            with open(sys.argv[1], "a") as calls:
                calls.write(call + "\n")
            return {"content": [{"type": "text", "text": f"did {call}"}]}
        case _:
            return {}


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            result = answer(request["method"], request.get("params", {}))
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


if __name__ == "__main__":
    serve()
