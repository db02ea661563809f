"""Tools, the changes of them within a conversation, and tool choice, to the core's.

`defer_loading` is not read: a deferred tool is in the prompt as any other. Whoever would search for it is another
server, and a prompt whose tools stay the same keeps its cached prefix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...core.errors import RequestError, Unsupported
from ...core.message import FunctionTool, Tool, ToolChoice
from ..body import echo, invalid, json_text, missing, one_of
from .blocks import CHANGES
from .builtin import builtin_tool
from .wire import ContentBlock, WireMessage, WireTool, WireToolChoice

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Toolbox:
    """The tools that may be called, by name, in the order in which they were declared."""

    def __init__(self, tools: Sequence[WireTool], warnings: list[str]) -> None:
        self._tools: dict[str, Tool] = {}
        self._left_out: set[str] = set()
        self._warnings = warnings
        for i, tool in enumerate(tools):
            self._add(tool, f"tools[{i}]")

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._tools.values())

    def change(self, messages: Sequence[WireMessage]) -> None:
        """Do what the system's messages say of tools. The prompt shows those that there are in the end."""
        for i, message in enumerate(messages):
            if message.role != "system" or not isinstance(message.content, list):
                continue
            for k, block in enumerate(message.content):
                if block.type in CHANGES:
                    self._change(block, f"messages[{i}].content[{k}].tool")

    def _change(self, block: ContentBlock, at: str) -> None:
        change = block.tool
        if change is None:
            raise missing(at)
        if change.definition is not None and block.type == "tool_addition":
            self._tools.pop(change.definition.name or "", None)
            self._add(change.definition, f"{at}.definition")
        elif change.type != "tool_reference":
            raise Unsupported(f"{echo(change.type)} is not supported here.", param=f"{at}.type")
        elif change.name is None:
            raise missing(f"{at}.name")
        elif block.type == "tool_removal":
            self._tools.pop(change.name, None)

    def _add(self, tool: WireTool, at: str) -> None:
        read = builtin_tool(tool) or _custom(tool, at)
        why = "cannot be run here" if read is None else _uncallable(tool)
        if read is None or why:
            self._left_out.add(tool.name or "")
            self._warnings.append(f"{at}: {echo(tool.name or tool.type or '')} {why}; it was left out")
        elif read.name in self._tools:
            raise invalid(f"{at}.name", f"tool names must be unique, {echo(read.name)} is there twice")
        else:
            self._tools[read.name] = read

    def choice(self, choice: WireToolChoice | None) -> ToolChoice:
        if choice is None:
            return ToolChoice()
        match one_of(choice.type, ("auto", "any", "tool", "none"), "tool_choice.type"):
            case "tool":
                return self._named(choice.name)
            case "any" if not self._tools:
                raise invalid("tool_choice", "'any' needs at least one tool that can be called in 'tools'")
            case "any":
                return ToolChoice("required")
            case mode:
                return ToolChoice(mode)

    def _named(self, name: str | None) -> ToolChoice:
        if not name:
            raise missing("tool_choice.name")
        if name in self._left_out and name not in self._tools:
            raise Unsupported(f"{echo(name)} cannot be run here.", param="tool_choice.name")
        if name not in self._tools:
            raise RequestError(f"Tool {echo(name)} not found in provided tools", param="tool_choice")
        return ToolChoice("required", (name,), named=True)


def _custom(tool: WireTool, at: str) -> FunctionTool | None:
    """None for a tool that another server would run: those have a type, and no schema."""
    schema = json_text(tool.input_schema, f"{at}.input_schema")
    if schema is None and tool.type not in (None, "custom"):
        return None
    if tool.name is None:
        raise missing(f"{at}.name")
    if not _NAME.fullmatch(tool.name):
        raise invalid(f"{at}.name", "expected 1 to 128 of the characters a-z, A-Z, 0-9, '_', '.' and '-'")
    if schema is None:
        raise missing(f"{at}.input_schema")
    return FunctionTool(tool.name, _description(tool), schema, tool.strict)


def _description(tool: WireTool) -> str | None:
    """With the examples, which templates have no place for."""
    if not tool.input_examples:
        return tool.description
    examples = "\n".join(bytes(example).decode() for example in tool.input_examples)
    return f"{tool.description or ''}\n\nExamples of its input:\n{examples}".strip()


def _uncallable(tool: WireTool) -> str:
    callers = tool.allowed_callers
    return "can only be called by hosted code" if callers and "direct" not in callers else ""
