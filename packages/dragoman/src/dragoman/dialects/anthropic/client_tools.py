"""The tools that Anthropic defines, which the client runs, as functions."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ...core.message import (
    FunctionTool,
)
from .wire import (
    AnthropicWireTool,
)

# The types of Anthropic's client tools, with the date of their version.
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
    """Build the function of a client tool of Anthropic's, such as `bash_20250124`; None
    for any other type.
    """
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
        (),
        command={"type": "string", "description": "The command to run."},
        restart={"type": "boolean"},
    ),
)


_MEMORY = (
    "Keep notes in files under /memories, which persist across conversations. view shows a file "
    "or lists a directory, "
    "create writes a file, str_replace replaces old_str with new_str, insert puts insert_text "
    "after line insert_line, "
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
    # The suffix is the date of the version, so versions compare as strings. Claude 4's
    # editor has no `undo_edit`.
    with_undo = kind < "text_editor_20250429"
    insert_field = "new_str" if kind < "text_editor_20250728" else "insert_text"
    commands = ("view", "create", "str_replace", "insert", *(("undo_edit",) if with_undo else ()))
    description = (
        "View, create and edit text files. view shows a file or lists a directory, create writes "
        "file_text, "
        f"str_replace replaces the only occurrence of old_str with new_str, insert puts "
        f"{insert_field} after line "
        "insert_line" + (", undo_edit reverts the last edit of the file." if with_undo else ".")
    )
    properties = {
        "file_text": _STRING,
        "old_str": _STRING,
        "new_str": _STRING,
        insert_field: _STRING,
    }
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
    "key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click",
    "double_click",
    "screenshot", "cursor_position",
)  # fmt: skip


_ACTIONS_2025 = (
    *_ACTIONS_2024, "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait",
    "triple_click",
)  # fmt: skip


def _build_computer(tool: AnthropicWireTool) -> tuple[str, Schema]:
    kind = tool.type or ""
    description = (
        "Use a computer with its screen, mouse and keyboard. Take a screenshot to see "
        "the result of an action."
    )
    if tool.display_width_px and tool.display_height_px:
        description += (
            f" The screen has {tool.display_width_px} by {tool.display_height_px} pixels."
        )
    properties: dict[str, Schema] = {"coordinate": _POINT, "text": _STRING}
    actions = _ACTIONS_2024
    # The January 2025 version added mouse buttons, scrolling, held keys and waiting;
    # the November one `zoom`, which the client enables.
    if kind > "computer_20241022":
        actions = _ACTIONS_2025
        properties |= {
            "start_coordinate": _POINT,
            "scroll_direction": _build_enum_schema("up", "down", "left", "right"),
            "scroll_amount": {"type": "integer"},
            "duration": {"type": "number", "description": "Seconds."},
        }
    if kind > "computer_20250124" and tool.enable_zoom:
        actions = (*actions, "zoom")
        properties["region"] = {
            "type": "array",
            "items": {"type": "integer"},
            "minItems": 4,
            "maxItems": 4,
        }
    return description, _build_object_schema(
        ("action",), action=_build_enum_schema(*actions), **properties
    )
