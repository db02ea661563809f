"""How tools that this server calls itself enter a prompt, in every dialect."""

from __future__ import annotations

import re

from ..core.message import FunctionTool
from ..core.server_tools import ListedTool

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)


def join_name(label: str, name: str) -> str:
    """Return a name for the prompt, with the characters that names of tools may have."""
    return _NOT_IN_NAMES.sub("_", f"{label}__{name}")[:128]


def build_function(tool: ListedTool, name: str) -> FunctionTool:
    return FunctionTool(name, tool.description, tool.schema, None)
