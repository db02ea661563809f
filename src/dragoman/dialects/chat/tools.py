"""Translates Chat's tools and tool choice, with the legacy `functions` and `function_call`, to the core's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...core.errors import RequestError, Unsupported
from ...core.message import CustomTool, FunctionTool, Tool, ToolChoice
from ..body import abbreviate, check_one_of, invalid_value, missing_parameter, read_json_object
from .wire import (
    AllowedTools,
    ChatBody,
    ChatNamedTool,
    ChatWireTool,
    ChatWireToolChoice,
    CustomDefinition,
    CustomFormat,
    FunctionDefinition,
    NameReference,
)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NO_CHOICE = ToolChoice()


def read_tools(tools: Sequence[ChatWireTool], warnings: list[str]) -> tuple[Tool, ...]:
    """Read function and custom tools. Hosted tools, which this server cannot run, are left out with a warning."""
    read: list[Tool] = []
    for i, tool in enumerate(tools):
        path = f"tools[{i}]"
        match tool.type:
            case "function":
                read.append(_read_function(tool.function, f"{path}.function"))
            case "custom":
                read.append(_read_custom(tool.custom, f"{path}.custom"))
            case hosted:
                warnings.append(f"{path}: tools of type {abbreviate(hosted)} cannot be run here; it was left out")
    _check_unique(read, "tools")
    return tuple(read)


def read_functions(functions: Sequence[FunctionDefinition]) -> tuple[Tool, ...]:
    tools: list[Tool] = [_read_function(function, f"functions[{i}]") for i, function in enumerate(functions)]
    _check_unique(tools, "functions")
    return tuple(tools)


def read_tool_choice(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:
    choice = body.tool_choice
    if choice is None:
        return _read_function_call(body.function_call, tools)
    if isinstance(choice, str):
        mode = check_one_of(choice, ("none", "auto", "required"), "tool_choice")
        # Hosted tools are left out, so the list may be empty although the request has tools.
        if mode == "required" and not tools:
            raise invalid_value("tool_choice", "'required' needs at least one tool that can be called in 'tools'")
        return ToolChoice(mode)
    match choice:
        case ChatWireToolChoice(type="function", function=NameReference(name)):
            return _choose_named(name, FunctionTool, tools, "tool_choice.function.name")
        case ChatWireToolChoice(type="custom", custom=NameReference(name)):
            return _choose_named(name, CustomTool, tools, "tool_choice.custom.name")
        case ChatWireToolChoice(type="allowed_tools", allowed_tools=AllowedTools() as allowed):
            return _read_allowed(allowed, tools)
        case ChatWireToolChoice(type="function" | "custom" | "allowed_tools"):
            raise missing_parameter(f"tool_choice.{choice.type}")
        case _:
            raise Unsupported(
                f"'tool_choice': tools of type {abbreviate(choice.type)} cannot be run here.", param="tool_choice"
            )


def _read_function_call(call: str | NameReference | None, tools: tuple[Tool, ...]) -> ToolChoice:
    if call is None:
        return NO_CHOICE
    if isinstance(call, NameReference):
        return _choose_named(call.name, FunctionTool, tools, "function_call.name")
    return ToolChoice(check_one_of(call, ("none", "auto"), "function_call"))


def _read_function(function: FunctionDefinition | None, path: str) -> FunctionTool:
    if function is None:
        raise missing_parameter(path)
    parameters = read_json_object(function.parameters, f"{path}.parameters")
    return FunctionTool(_check_name(function.name, f"{path}.name"), function.description, parameters, function.strict)


def _read_custom(custom: CustomDefinition | None, path: str) -> CustomTool:
    if custom is None:
        raise missing_parameter(path)
    syntax, definition = _read_format(custom.format, f"{path}.format")
    return CustomTool(_check_name(custom.name, f"{path}.name"), custom.description, syntax, definition)


def _read_format(format: CustomFormat | None, path: str) -> tuple[str | None, str | None]:
    if format is None or check_one_of(format.type, ("text", "grammar"), f"{path}.type") == "text":
        return None, None
    if format.grammar is not None:
        syntax, definition = format.grammar.syntax, format.grammar.definition
    elif format.syntax is not None and format.definition is not None:
        syntax, definition = format.syntax, format.definition
    else:
        raise missing_parameter(f"{path}.grammar")
    return check_one_of(syntax, ("lark", "regex"), f"{path}.grammar.syntax"), definition


def _check_name(name: str, param: str) -> str:
    if not _NAME.fullmatch(name):
        raise invalid_value(
            param, f"expected 1 to 64 of the characters a-z, A-Z, 0-9, '_', '.' and '-', got {abbreviate(name)}"
        )
    return name


def _check_unique(tools: Sequence[Tool], param: str) -> None:
    names: set[str] = set()
    for tool in tools:
        if tool.name in names:
            raise RequestError(f"'{param}' declares {abbreviate(tool.name)} twice.", param=param, code="invalid_value")
        names.add(tool.name)


def _choose_named(name: str, kind: type[Tool], tools: tuple[Tool, ...], param: str) -> ToolChoice:
    if not any(tool.name == name and isinstance(tool, kind) for tool in tools):
        raise invalid_value(param, f"{abbreviate(name)} is not among the declared tools of that type")
    return ToolChoice("required", (name,), is_named=True)


def _read_allowed(allowed: AllowedTools, tools: tuple[Tool, ...]) -> ToolChoice:
    path = "tool_choice.allowed_tools"
    mode = check_one_of(allowed.mode, ("auto", "required"), f"{path}.mode")
    names = tuple(_read_allowed_names(allowed.tools, tools, f"{path}.tools"))
    if not names:
        raise invalid_value(f"{path}.tools", "expected at least one declared tool")
    return ToolChoice(mode, names)


def _read_allowed_names(references: Sequence[ChatNamedTool], tools: tuple[Tool, ...], path: str) -> Iterator[str]:
    declared = {tool.name for tool in tools}
    for i, tool in enumerate(references):
        reference = tool.function or tool.custom
        if reference is None:
            raise missing_parameter(f"{path}[{i}].{tool.type}")
        if reference.name not in declared:
            raise invalid_value(f"{path}[{i}]", f"{abbreviate(reference.name)} is not among the declared tools")
        yield reference.name
