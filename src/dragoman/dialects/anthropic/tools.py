"""Translates tools, tool changes within a conversation, and tool choice to the core's.

`defer_loading` is ignored: a deferred tool is in the prompt like any other. The search for deferred tools is a hosted
tool, and a prompt with constant tools keeps its cached prefix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...core.errors import RequestError, Unsupported
from ...core.message import FunctionTool, Tool, ToolChoice
from ..body import abbreviate, check_one_of, invalid_value, missing_parameter, read_json_object
from .client_tools import build_client_tool
from .content_blocks import TOOL_CHANGES
from .wire import AnthropicWireMessage, AnthropicWireTool, AnthropicWireToolChoice, WireContentBlock

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class AnthropicToolRegistry:
    """The callable tools by name, in declaration order."""

    def __init__(self, tools: Sequence[AnthropicWireTool], warnings: list[str]) -> None:
        self._tools: dict[str, Tool] = {}
        self._unavailable: set[str] = set()
        self._warnings = warnings
        for i, tool in enumerate(tools):
            self._add(tool, f"tools[{i}]")

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._tools.values())

    def apply_changes(self, messages: Sequence[AnthropicWireMessage]) -> None:
        """Apply the tool changes in system messages. The prompt contains the final set of tools."""
        for i, message in enumerate(messages):
            if message.role != "system" or not isinstance(message.content, list):
                continue
            for k, block in enumerate(message.content):
                if block.type in TOOL_CHANGES:
                    self._apply_change(block, f"messages[{i}].content[{k}].tool")

    def _apply_change(self, block: WireContentBlock, path: str) -> None:
        change = block.tool
        if change is None:
            raise missing_parameter(path)
        if change.definition is not None and block.type == "tool_addition":
            # Added again, a tool moves to the end of the declarations, as if it had been declared when it was added.
            self._tools.pop(change.definition.name or "", None)
            self._add(change.definition, f"{path}.definition")
        elif change.type != "tool_reference":
            raise Unsupported(f"{abbreviate(change.type)} is not supported here.", param=f"{path}.type")
        elif change.name is None:
            raise missing_parameter(f"{path}.name")
        elif block.type == "tool_removal":
            self._tools.pop(change.name, None)

    def _add(self, tool: AnthropicWireTool, path: str) -> None:
        parsed = build_client_tool(tool) or _read_custom(tool, path)
        # Left out with a warning, as agents always declare a set of tools, and need not call this one.
        reason = "cannot be run here" if parsed is None else _explain_uncallable(tool)
        if parsed is None or reason:
            self._unavailable.add(tool.name or "")
            self._warnings.append(f"{path}: {abbreviate(tool.name or tool.type or '')} {reason}; it was left out")
        elif parsed.name in self._tools:
            raise invalid_value(f"{path}.name", f"tool names must be unique, {abbreviate(parsed.name)} is there twice")
        else:
            self._tools[parsed.name] = parsed

    def read_choice(self, choice: AnthropicWireToolChoice | None) -> ToolChoice:
        if choice is None:
            return ToolChoice()
        match check_one_of(choice.type, ("auto", "any", "tool", "none"), "tool_choice.type"):
            case "tool":
                return self._choose_named(choice.name)
            # Hosted tools are left out, so there may be tools in the request and none to call.
            case "any" if not self._tools:
                raise invalid_value("tool_choice", "'any' needs at least one tool that can be called in 'tools'")
            case "any":
                return ToolChoice("required")
            case mode:
                return ToolChoice(mode)

    def _choose_named(self, name: str | None) -> ToolChoice:
        if not name:
            raise missing_parameter("tool_choice.name")
        # Forcing it is an error all the same: the client waits for exactly this call.
        if name in self._unavailable and name not in self._tools:
            raise Unsupported(f"{abbreviate(name)} cannot be run here.", param="tool_choice.name")
        if name not in self._tools:
            raise RequestError(f"Tool {abbreviate(name)} not found in provided tools", param="tool_choice")
        return ToolChoice("required", (name,), is_named=True)


def _read_custom(tool: AnthropicWireTool, path: str) -> FunctionTool | None:
    """Read a custom tool; None for a hosted tool, which has a type and no schema."""
    schema = read_json_object(tool.input_schema, f"{path}.input_schema")
    # A hosted tool that also has a schema is readable as a custom one, and any model can call it.
    if schema is None and tool.type not in (None, "custom"):
        return None
    if tool.name is None:
        raise missing_parameter(f"{path}.name")
    if not _NAME.fullmatch(tool.name):
        raise invalid_value(f"{path}.name", "expected 1 to 128 of the characters a-z, A-Z, 0-9, '_', '.' and '-'")
    if schema is None:
        raise missing_parameter(f"{path}.input_schema")
    return FunctionTool(tool.name, _build_description(tool), schema, tool.strict)


def _build_description(tool: AnthropicWireTool) -> str | None:
    """The description with the input examples, for which templates have no field."""
    if not tool.input_examples:
        return tool.description
    examples = "\n".join(bytes(example).decode() for example in tool.input_examples)
    return f"{tool.description or ''}\n\nExamples of its input:\n{examples}".strip()


def _explain_uncallable(tool: AnthropicWireTool) -> str:
    callers = tool.allowed_callers
    return "can only be called by hosted code" if callers and "direct" not in callers else ""
