"""Translates calls of client tools, those that OpenAI defines, between items and
arguments.

A call comes back as an item of its own type. The shapes are those of openai-python 3.54
(`openai.types.responses`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from ..field_errors import invalid_value, missing_parameter
from ..json_encoding import encode_string, escape_line_breaks
from ..request_body import read_json_value
from .wire import ResponsesContentPart, ResponsesWireTool, WireItem, minify

T = TypeVar("T")


class CallFields(Struct, frozen=True):
    """The fields of a call's item as JSON without braces.

    complete: the fields of the complete item.
    initial: the fields in `output_item.added`; empty if they are the same.
    commands: the commands of a shell call, which are streamed by events of their own.
    """

    complete: bytes
    initial: bytes = b""
    commands: tuple[str, ...] = ()


class ClientTool(Struct, frozen=True):
    """The translation of one tool type to a function and back.

    name: the function's name in the prompt, unless another tool has it.
    call, output: types of the items of its calls and outputs.
    render_call: renders the fields of a call's item from the function's arguments;
    raises msgspec.MsgspecError or ValueError if they do not have the tool's shape.
    read_call: returns the function's arguments from a call's item; its second argument
        is the item's field, for errors.
    """

    name: str
    call: str
    output: str
    render_call: Callable[[bytes], CallFields]
    read_call: Callable[[WireItem, str], bytes]


class _ShellAction(Struct, frozen=True, omit_defaults=True):
    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class _LocalShellAction(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="exec"):
    command: list[str]
    env: dict[str, str]
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class _LocalShellArguments(Struct, frozen=True):
    command: list[str]
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class _CreateFile(Struct, frozen=True, tag_field="type", tag="create_file"):
    path: str
    diff: str


class _UpdateFile(Struct, frozen=True, tag_field="type", tag="update_file"):
    path: str
    diff: str


class _DeleteFile(Struct, frozen=True, tag_field="type", tag="delete_file"):
    path: str


class _PatchArguments(Struct, frozen=True):
    operation: _CreateFile | _UpdateFile | _DeleteFile


class _Point(Struct, frozen=True):
    x: int
    y: int


class _Pointer(_Point, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    keys: list[str] | None = None


class _Click(_Pointer, frozen=True, kw_only=True, tag="click"):
    button: str


class _DoubleClick(_Pointer, frozen=True, kw_only=True, tag="double_click"):
    pass


class _Move(_Pointer, frozen=True, kw_only=True, tag="move"):
    pass


class _Scroll(_Pointer, frozen=True, kw_only=True, tag="scroll"):
    scroll_x: int
    scroll_y: int


class _Drag(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="drag"):
    path: list[_Point]
    keys: list[str] | None = None


class _Keypress(Struct, frozen=True, tag_field="type", tag="keypress"):
    keys: list[str]


class _TypeText(Struct, frozen=True, tag_field="type", tag="type"):
    text: str


class _Screenshot(Struct, frozen=True, tag_field="type", tag="screenshot"):
    pass


class _Wait(Struct, frozen=True, tag_field="type", tag="wait"):
    pass


_Action = (
    _Click | _DoubleClick | _Move | _Scroll | _Drag | _Keypress | _TypeText | _Screenshot | _Wait
)


class _ComputerArguments(Struct, frozen=True):
    actions: list[_Action]


class _PreviewArguments(Struct, frozen=True):
    action: _Action


class _ShellOutcome(Struct, frozen=True):
    type: str = "exit"
    exit_code: int | None = None


class _Screen(Struct, frozen=True):
    image_url: str | None = None
    file_id: str | None = None


def encode_json(value: object) -> bytes:
    return escape_line_breaks(msgspec.json.encode(value))


def _render_shell(arguments: bytes) -> CallFields:
    action = msgspec.json.decode(arguments, type=_ShellAction)
    # The commands follow as events of their own, so the item begins with an empty list
    # of them.
    complete, initial = (
        b'"action":%s,"environment":{"type":"local"}' % encode_json(each)
        for each in (action, msgspec.structs.replace(action, commands=[]))
    )
    return CallFields(complete, initial, tuple(action.commands))


def _render_local_shell(arguments: bytes) -> CallFields:
    # OpenAI's item requires `env`, which the schema leaves optional for the model.
    parsed = msgspec.json.decode(arguments, type=_LocalShellArguments)
    action = _LocalShellAction(
        parsed.command, parsed.env or {}, parsed.timeout_ms, parsed.user, parsed.working_directory
    )
    return CallFields(b'"action":' + encode_json(action))


def _render_patch(arguments: bytes) -> CallFields:
    return CallFields(
        b'"operation":'
        + encode_json(msgspec.json.decode(arguments, type=_PatchArguments).operation)
    )


def _render_computer(arguments: bytes) -> CallFields:
    actions = msgspec.json.decode(arguments, type=_ComputerArguments).actions
    return CallFields(b'"pending_safety_checks":[],"actions":' + encode_json(actions))


def _render_preview(arguments: bytes) -> CallFields:
    action = msgspec.json.decode(arguments, type=_PreviewArguments).action
    return CallFields(b'"pending_safety_checks":[],"action":' + encode_json(action))


def _render_search(arguments: bytes) -> CallFields:
    fields = msgspec.json.decode(arguments, type=dict[str, object])
    return CallFields(b'"execution":"client","arguments":' + encode_json(fields))


def _read_field(raw: Raw, path: str) -> object:
    """Return a field of a call that the client replays. It is not validated further:
    the client has already run the call.
    """
    value = read_json_value(raw, path)
    if not isinstance(value, dict | list):
        raise (
            missing_parameter(path)
            if value is None
            else invalid_value(path, "expected an object or an array")
        )
    return cast("object", value)


def _read_action(item: WireItem, path: str) -> bytes:
    action = _read_field(item.action, f"{path}.action")
    fields = cast("dict[str, object]", action) if isinstance(action, dict) else {}
    # The arguments as the model wrote them: the item's shape adds `type`, and clients
    # send null for what is unset.
    return encode_json(
        {name: value for name, value in fields.items() if name != "type" and value is not None}
    )


def _read_operation(item: WireItem, path: str) -> bytes:
    return encode_json({"operation": _read_field(item.operation, f"{path}.operation")})


def _read_computer(item: WireItem, path: str) -> bytes:
    # The preview and its successor have one type of item, which differs only in this
    # field.
    if read_json_value(item.action, f"{path}.action") is not None:
        return encode_json({"action": _read_field(item.action, f"{path}.action")})
    return encode_json({"actions": _read_field(item.actions, f"{path}.actions")})


def _read_search(item: WireItem, path: str) -> bytes:
    return encode_json(_read_field(item.arguments, f"{path}.arguments"))


CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "shell": ClientTool("shell", "shell_call", "shell_call_output", _render_shell, _read_action),
    "local_shell": ClientTool(
        "local_shell",
        "local_shell_call",
        "local_shell_call_output",
        _render_local_shell,
        _read_action,
    ),
    "apply_patch": ClientTool(
        "apply_patch", "apply_patch_call", "apply_patch_call_output", _render_patch, _read_operation
    ),
    "computer": ClientTool(
        "computer", "computer_call", "computer_call_output", _render_computer, _read_computer
    ),
    "computer_use_preview": ClientTool(
        "computer", "computer_call", "computer_call_output", _render_preview, _read_computer
    ),
    "tool_search": ClientTool(
        "tool_search", "tool_search_call", "tool_search_output", _render_search, _read_search
    ),
}
"""Client tools by the type that a request declares."""
CALL_TYPES = frozenset(tool.call for tool in CLIENT_TOOLS.values())
OUTPUT_TYPES = frozenset(tool.output for tool in CLIENT_TOOLS.values())
CHOICE_TYPES = {"computer_use": "computer"}
"""Tool types by the type of a tool choice, where the two differ."""


def find_kinds(call: str) -> tuple[str, ...]:
    """Return the kinds of tools with this type of call."""
    return tuple(kind for kind, tool in CLIENT_TOOLS.items() if tool.call == call)


def is_client_tool(tool: ResponsesWireTool) -> bool:
    """Whether the client runs the tool; a shell in a container and a search on the
    server are hosted tools.
    """
    match tool.type:
        case "tool_search":
            return tool.execution == "client"
        case "shell":
            if bytes(tool.environment).strip() in (b"", b"null"):
                return True
            environment = decode_or_none(tool.environment, dict[str, Raw])
            return (
                environment is not None
                and bytes(environment.get("type", Raw(b'"local"'))) == b'"local"'
            )
        case kind:
            return kind in CLIENT_TOOLS


def render_client_tool(tool: ResponsesWireTool, path: str) -> bytes:
    """Render the tool as the response object repeats it."""
    fields = [b'"type":' + encode_string(tool.type)]
    for name in ("display_width", "display_height", "execution", "description"):
        if (value := getattr(tool, name)) is not None:
            fields.append(b'"%s":%s' % (name.encode(), encode_json(value)))
    for name in ("environment", "parameters"):
        raw: Raw = getattr(tool, name)
        if read_json_value(raw, f"{path}.{name}") is not None:
            fields.append(b'"%s":%s' % (name.encode(), minify(raw)))
    return b"{%s}" % b",".join(fields)


def render_shell_output(parts: Sequence[ResponsesContentPart | str]) -> str:
    """Render the output of the commands of a shell call, as text."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        outcome = decode_or_none(part.outcome, _ShellOutcome) or _ShellOutcome()
        # Most output ends with a line break already, and the join adds one.
        texts += [text.rstrip("\n") for text in (part.stdout or part.text, part.stderr) if text]
        if outcome.type == "timeout":
            texts.append("[timed out]")
        elif outcome.exit_code is not None:
            texts.append(f"[exit code {outcome.exit_code}]")
    return "\n".join(texts)


def read_screen(output: Mapping[str, Raw]) -> ResponsesContentPart:
    """Return the screenshot of a computer call as an image part."""
    screen = decode_or_none(Raw(msgspec.json.encode(output)), _Screen) or _Screen()
    return ResponsesContentPart("input_image", image_url=screen.image_url, file_id=screen.file_id)


def decode_or_none(raw: Raw, type: type[T]) -> T | None:
    """Decode a JSON value that a client sent; None if it is absent or of another type."""
    try:
        return msgspec.json.decode(raw, type=type) if bytes(raw) else None
    # msgspec raises the latter two, which do not derive from MsgspecError, for invalid
    # UTF-8 and for deep nesting.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
