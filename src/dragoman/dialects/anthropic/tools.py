"""Translates tools, tool changes within a conversation, and tool choice to the core's.

`defer_loading` is ignored: a deferred tool is in the prompt like any other. The search for deferred tools is a hosted
tool, and a prompt with constant tools keeps its cached prefix.

The tools that Anthropic defines and the client runs become functions with the inputs from Anthropic's documentation:
Claude models are trained on them and need no schema; any other model does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ...core.errors import RequestError, Unsupported
from ...core.message import FunctionTool, Tool, ToolChoice
from ..body import abbreviate, check_one_of, invalid_value, missing_parameter, read_json_object
from .content_blocks import TOOL_CHANGES
from .wire import AnthropicWireMessage, AnthropicWireTool, AnthropicWireToolChoice, WireContentBlock

_TYPE_PATTERN = re.compile(r"(bash|text_editor|computer|memory)_\d{8}")

Schema = dict[str, Any]
_STRING: Schema = {"type": "string"}
_PATH: Schema = {"type": "string", "description": "Absolute path of the file or directory."}
_RANGE: Schema = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "First and last line to view, counted from 1; -1 is the end of the file.",
}
_POINT: Schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def build_client_tool(tool: AnthropicWireTool) -> FunctionTool | None:
    """Build the function; None if the type is not one of these tools."""
    match = _TYPE_PATTERN.fullmatch(tool.type or "")
    if match is None:
        return None
    match match.group(1):
        case "bash":
            return _build_function(tool.name or "bash", _BASH)
        case "memory":
            return _build_function(tool.name or "memory", _MEMORY)
        case "computer":
            return _build_function(tool.name or "computer", _build_computer(tool))
        case _:
            return _build_editor(tool)


def _build_function(name: str, definition: tuple[str, Schema]) -> FunctionTool:
    description, schema = definition
    return FunctionTool(name, description, msgspec.json.encode(schema).decode())


def _build_object_schema(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _build_enum_schema(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


_BASH = (
    "Run a command in a persistent bash session. Set restart to true to start a new session.",
    _build_object_schema(
        (), command={"type": "string", "description": "The command to run."}, restart={"type": "boolean"}
    ),
)

_MEMORY = (
    "Keep notes in files under /memories, which persist across conversations. view shows a file or lists a directory, "
    "create writes a file, str_replace replaces old_str with new_str, insert puts insert_text after line insert_line, "
    "delete removes path, rename moves old_path to new_path.",
    _build_object_schema(
        ("command",),
        command=_build_enum_schema("view", "create", "str_replace", "insert", "delete", "rename"),
        path=_PATH,
        view_range=_RANGE,
        file_text=_STRING,
        old_str=_STRING,
        new_str=_STRING,
        insert_line={"type": "integer"},
        insert_text=_STRING,
        old_path=_STRING,
        new_path=_STRING,
    ),
)


def _build_editor(tool: AnthropicWireTool) -> FunctionTool:
    """Build the editor tool. Later versions removed a command and renamed a parameter."""
    kind = tool.type or ""
    # The suffix is the date of the version, so versions compare as strings. Claude 4's editor has no `undo_edit`.
    with_undo = kind < "text_editor_20250429"
    insert_field = "new_str" if kind < "text_editor_20250728" else "insert_text"
    commands = ("view", "create", "str_replace", "insert", *(("undo_edit",) if with_undo else ()))
    description = (
        "View, create and edit text files. view shows a file or lists a directory, create writes file_text, "
        f"str_replace replaces the only occurrence of old_str with new_str, insert puts {insert_field} after line "
        "insert_line" + (", undo_edit reverts the last edit of the file." if with_undo else ".")
    )
    properties = {"file_text": _STRING, "old_str": _STRING, "new_str": _STRING, insert_field: _STRING}
    schema = _build_object_schema(
        ("command", "path"),
        command=_build_enum_schema(*commands),
        path=_PATH,
        view_range=_RANGE,
        insert_line={"type": "integer"},
        **properties,
    )
    name = "str_replace_editor" if with_undo else "str_replace_based_edit_tool"
    return _build_function(tool.name or name, (description, schema))


_ACTIONS_2024 = (
    "key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click",
    "screenshot", "cursor_position",
)  # fmt: skip
_ACTIONS_2025 = (
    *_ACTIONS_2024, "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click",
)  # fmt: skip


def _build_computer(tool: AnthropicWireTool) -> tuple[str, Schema]:
    kind = tool.type or ""
    description = (
        "Use a computer with its screen, mouse and keyboard. Take a screenshot to see the result of an action."
    )
    if tool.display_width_px and tool.display_height_px:
        description += f" The screen has {tool.display_width_px} by {tool.display_height_px} pixels."
    properties: dict[str, Schema] = {"coordinate": _POINT, "text": _STRING}
    actions = _ACTIONS_2024
    # The January 2025 version added mouse buttons, scrolling, held keys and waiting; the November one `zoom`.
    if kind > "computer_20241022":
        actions = _ACTIONS_2025
        properties |= {
            "start_coordinate": _POINT,
            "scroll_direction": _build_enum_schema("up", "down", "left", "right"),
            "scroll_amount": {"type": "integer"},
            "duration": {"type": "number", "description": "Seconds."},
        }
    if kind > "computer_20250124":
        actions = (*actions, "zoom")
        properties["region"] = {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4}
    return description, _build_object_schema(("action",), action=_build_enum_schema(*actions), **properties)


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
