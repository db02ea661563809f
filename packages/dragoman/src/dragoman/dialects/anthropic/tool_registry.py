"""Parses the tools of Messages, their changes within a conversation, the tool choice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy

from msgspec.structs import replace

from ...core.errors import RequestError, Unsupported
from ...core.message import (
    FunctionTool,
    Tool,
    ToolChoice,
)
from ...core.server_tools import HostedTarget
from ..field_errors import abbreviate, check_one_of, invalid_value, missing_parameter
from ..request_body import read_json_object
from .client_tools import build_client_tool
from .content_blocks import TOOL_CHANGES
from .hosted_tools import find_hosted_name
from .mcp_toolsets import MCP_TOOLSET
from .wire import (
    AnthropicWireMessage,
    AnthropicWireTool,
    AnthropicWireToolChoice,
    ToolChange,
)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def has_tool_changes(messages: Sequence[AnthropicWireMessage]) -> bool:
    """Whether `AnthropicToolRegistry.apply_changes` may find any."""
    for message in messages:
        if message.role == "system" and isinstance(message.content, list):
            return True
    return False


class AnthropicToolRegistry:
    """The callable tools by name, in declaration order.

    has_servers: the toolsets among the tools are those of declared servers.
    hosted_tools: as in `ReaderOptions`.
    """

    def __init__(
        self,
        tools: Sequence[AnthropicWireTool],
        warnings: list[str],
        *,
        has_servers: bool = False,
        hosted_tools: Mapping[str, HostedTarget],
    ) -> None:
        self._tools: dict[str, Tool] = {}
        self._removed: dict[str, Tool] = {}
        self._unavailable: set[str] = set()
        self._warnings = warnings
        for i, tool in enumerate(tools):
            is_toolset = has_servers and tool.type == MCP_TOOLSET
            if not is_toolset and not find_hosted_name(tool, hosted_tools):
                self._add(tool, f"tools[{i}]")

    def copy(self, warnings: list[str]) -> AnthropicToolRegistry:
        """Return a registry of the same tools, which can be changed. warnings: receives
        its warnings.
        """
        copied = copy(self)
        copied._tools = self._tools.copy()
        copied._removed = self._removed.copy()
        copied._unavailable = self._unavailable.copy()
        copied._warnings = warnings
        return copied

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._tools.values())

    def add_server_tools(self, tools: Sequence[FunctionTool]) -> None:
        """Add the tools that this server calls, whose names differ from all others."""
        self._tools |= {tool.name: tool for tool in tools}

    def apply_changes(self, messages: Sequence[AnthropicWireMessage]) -> None:
        """Apply the tool changes in system messages. The prompt contains the final set
        of tools.
        """
        for i, message in enumerate(messages):
            if message.role != "system" or not isinstance(message.content, list):
                continue
            for k, block in enumerate(message.content):
                if block.type in TOOL_CHANGES:
                    path = f"messages[{i}].content[{k}].tool"
                    if block.tool is None:
                        raise missing_parameter(path)
                    self._apply_change(block.tool, path, is_addition=block.type == "tool_addition")

    def _apply_change(self, change: ToolChange, path: str, *, is_addition: bool) -> None:
        if change.definition is not None and is_addition:
            # A tool that is added again moves to the end, as if it had been declared
            # only then.
            self._tools.pop(change.definition.name or "", None)
            self._add(change.definition, f"{path}.definition")
            return
        if change.type != "tool_reference":
            raise Unsupported(
                f"{abbreviate(change.type)} is not supported here.", param=f"{path}.type"
            )
        if (name := change.name) is None:
            raise missing_parameter(f"{path}.name")
        if is_addition and name in self._removed:
            self._tools.setdefault(name, self._removed.pop(name))
        elif not is_addition and name in self._tools:
            self._removed[name] = self._tools.pop(name)
        elif not any(name in known for known in (self._tools, self._removed, self._unavailable)):
            self._warnings.append(
                f"{path}.name: no tool {abbreviate(name)} is declared; the block was ignored"
            )

    def _add(self, tool: AnthropicWireTool, path: str) -> None:
        parsed = build_client_tool(tool) or _read_custom(tool, path)
        if parsed is not None:
            parsed = _apply_options(parsed, tool)
        callers = tool.allowed_callers
        # Only a warning, since agents always declare a fixed set of tools and may never
        # need this one.
        if parsed is None or (callers and "direct" not in callers):
            reason = "cannot be run here" if parsed is None else "can only be called by hosted code"
            self._unavailable.add(tool.name or "")
            self._warnings.append(
                f"{path}: {abbreviate(tool.name or tool.type or '')} {reason}; it was left out"
            )
        elif parsed.name in self._tools:
            raise invalid_value(
                f"{path}.name", f"tool names must be unique, {abbreviate(parsed.name)} occurs twice"
            )
        else:
            self._tools[parsed.name] = parsed

    def read_choice(self, choice: AnthropicWireToolChoice | None) -> ToolChoice:
        if choice is None:
            return ToolChoice()
        mode = check_one_of(choice.type, ("auto", "any", "tool", "none"), "tool_choice.type")
        # Hosted tools are omitted, so a request with tools may have none that can be
        # called.
        if mode == "any" and not self._tools:
            raise invalid_value(
                "tool_choice", "'any' needs at least one tool that can be called in 'tools'"
            )
        if mode != "tool":
            return ToolChoice("required" if mode == "any" else mode)
        name = choice.name
        if not name:
            raise missing_parameter("tool_choice.name")
        # Unlike declaring an unavailable tool, forcing one is an error: the client
        # waits for exactly this call.
        if name in self._unavailable and name not in self._tools:
            raise Unsupported(f"{abbreviate(name)} cannot be run here.", param="tool_choice.name")
        if name not in self._tools:
            raise RequestError(
                f"Tool {abbreviate(name)} not found in provided tools", param="tool_choice"
            )
        return ToolChoice("required", (name,), is_named=True)


def _read_custom(tool: AnthropicWireTool, path: str) -> FunctionTool | None:
    """Parse a custom tool; None for a hosted tool, which has a type and no schema."""
    schema = read_json_object(tool.input_schema, f"{path}.input_schema")
    # A hosted tool that also has a schema is treated as a custom one, which any model
    # can call.
    if schema is None and tool.type not in (None, "custom"):
        return None
    if tool.name is None:
        raise missing_parameter(f"{path}.name")
    if not _NAME.fullmatch(tool.name):
        raise invalid_value(
            f"{path}.name", "expected 1 to 128 of the characters a-z, A-Z, 0-9, '_', '.' and '-'"
        )
    if schema is None:
        raise missing_parameter(f"{path}.input_schema")
    return FunctionTool(tool.name, tool.description, schema)


def _apply_options(parsed: FunctionTool, tool: AnthropicWireTool) -> FunctionTool:
    """Return a tool with the options that all kinds of tools have."""
    if not tool.input_examples:
        return replace(parsed, strict=tool.strict)
    # Chat templates have no field for examples.
    examples = "\n".join(bytes(example).decode() for example in tool.input_examples)
    description = f"{parsed.description or ''}\n\nExamples of its input:\n{examples}".strip()
    return replace(parsed, strict=tool.strict, description=description)
