"""The functions that the prompt declares for the tools that OpenAI defines.

OpenAI's models are trained on these tools and need no schema; any other model does.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...core.message import FunctionTool
from ..request_body import read_json_object
from .client_tools import decode_or_none, encode_json
from .wire import ResponsesWireTool

Schema = dict[str, Any]


class _Skill(Struct, frozen=True):
    name: str
    description: str
    path: str


class _Environment(Struct, frozen=True):
    """The environment of a shell: `local`, or a container on the server."""

    type: str = "local"
    skills: list[_Skill] | None = None


def _object(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _tag(tag: str, required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return _object(("type", *required), type={"type": "string", "enum": [tag]}, **properties)


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_STRING: Schema = {"type": "string"}


_INTEGER: Schema = {"type": "integer"}


_COUNT: Schema = {"type": "integer", "minimum": 1}


_XY = {"x": _INTEGER, "y": _INTEGER}


_KEYS: Schema = {**_array(_STRING), "description": "Keys that are held."}


_BUTTON: Schema = {"type": "string", "enum": ["left", "right", "wheel", "back", "forward"]}


_ACTION: Schema = {
    "anyOf": [
        _tag("click", ("button", "x", "y"), button=_BUTTON, **_XY, keys=_KEYS),
        _tag("double_click", ("x", "y"), **_XY, keys=_KEYS),
        _tag("drag", ("path",), path=_array(_object(("x", "y"), **_XY)), keys=_KEYS),
        _tag("keypress", ("keys",), keys=_array(_STRING)),
        _tag("move", ("x", "y"), **_XY, keys=_KEYS),
        _tag("screenshot"),
        _tag(
            "scroll",
            ("x", "y", "scroll_x", "scroll_y"),
            **_XY,
            scroll_x=_INTEGER,
            scroll_y=_INTEGER,
            keys=_KEYS,
        ),
        _tag("type", ("text",), text=_STRING),
        _tag("wait"),
    ]
}


_DIFF = (
    "Lines to remove begin with -, lines to add with +, unchanged lines with a space, each "
    "hunk with @@."
)


_OPERATION: Schema = {
    "anyOf": [
        _tag(
            "create_file",
            ("path", "diff"),
            path=_STRING,
            diff={**_STRING, "description": "Lines begin with +."},
        ),
        _tag("update_file", ("path", "diff"), path=_STRING, diff={**_STRING, "description": _DIFF}),
        _tag("delete_file", ("path",), path=_STRING),
    ]
}


_COMPUTER = "Use a computer with its screen, mouse and keyboard; the result is a screenshot."


def build_client_function(tool: ResponsesWireTool, name: str, path: str) -> FunctionTool:
    """Build the function that the prompt declares for a tool."""
    match tool.type:
        case "shell":
            description = "Run shell commands one after another on the user's machine."
            environment = decode_or_none(tool.environment, _Environment) or _Environment()
            for skill in environment.skills or ():
                description += f"\nSkill {skill.name} in {skill.path}: {skill.description}"
            schema = _object(
                ("commands",), commands=_array(_STRING), timeout_ms=_COUNT, max_output_length=_COUNT
            )
        case "local_shell":
            description = "Run a command on the user's machine. The command is a list of arguments."
            env: Schema = {"type": "object", "additionalProperties": _STRING}
            schema = _object(
                ("command",), command=_array(_STRING), env=env, timeout_ms=_COUNT, user=_STRING,
                working_directory=_STRING,
            )  # fmt: skip
        case "apply_patch":
            description = "Create, update or delete a file of the user's workspace by a diff."
            schema = _object(("operation",), operation=_OPERATION)
        case "computer":
            description = _COMPUTER
            schema = _object(("actions",), actions={**_array(_ACTION), "minItems": 1})
        # The older tool states the screen's size and makes one action a call; its
        # successor makes several.
        case "computer_use_preview":
            description = _COMPUTER
            schema = _object(("action",), action=_ACTION)
            if tool.display_width and tool.display_height:
                description += (
                    f" The screen has {tool.display_width} by {tool.display_height} pixels."
                )
        case _:
            parameters = read_json_object(tool.parameters, f"{path}.parameters")
            description = (
                tool.description or "Find further tools by a description of what they have to do."
            )
            return FunctionTool(
                name,
                description,
                parameters or encode_json(_object(("query",), query=_STRING)).decode(),
            )
    return FunctionTool(name, description, encode_json(schema).decode())
