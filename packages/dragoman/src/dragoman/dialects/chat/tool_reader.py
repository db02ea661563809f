"""Parses the tools of Chat Completions with the tool choice, including the legacy
`functions`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...core.errors import RequestError, Unsupported
from ...core.message import (
    CustomTool,
    FunctionTool,
    Tool,
    ToolChoice,
)
from ..field_errors import abbreviate, check_one_of, invalid_value, missing_parameter
from ..request_body import read_json_object
from .wire import (
    AllowedTools,
    ChatBody,
    ChatWireTool,
    ChatWireToolChoice,
    CustomDefinition,
    FunctionDefinition,
    NameReference,
)

# OpenAI's limit in Chat Completions; in Responses it is 128.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


NO_CHOICE = ToolChoice()


def read_tools(tools: Sequence[ChatWireTool], warnings: list[str]) -> tuple[Tool, ...]:
    """Parse function and custom tools. Hosted tools, which this server cannot run, are
    omitted with a warning.
    """
    parsed_tools: list[Tool] = []
    for i, tool in enumerate(tools):
        path = f"tools[{i}]"
        match tool.type:
            case "function":
                parsed_tools.append(_read_function(tool.function, f"{path}.function"))
            case "custom":
                parsed_tools.append(_read_custom(tool.custom, f"{path}.custom"))
            case hosted:
                warnings.append(
                    f"{path}: tools of type {abbreviate(hosted)} cannot be run here; it was left "
                    f"out"
                )
    _check_unique(parsed_tools, "tools")
    return tuple(parsed_tools)


def read_functions(functions: Sequence[FunctionDefinition]) -> tuple[Tool, ...]:
    tools: list[Tool] = [
        _read_function(function, f"functions[{i}]") for i, function in enumerate(functions)
    ]
    _check_unique(tools, "functions")
    return tuple(tools)


def read_tool_choice(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:  # noqa: PLR0911 - a table
    choice = body.tool_choice
    if choice is None:
        match body.function_call:
            case None:
                return NO_CHOICE
            case NameReference(name):
                return _choose_named(name, FunctionTool, tools, "function_call.name")
            case mode:
                return ToolChoice(check_one_of(mode, ("none", "auto"), "function_call"))
    if isinstance(choice, str):
        mode = check_one_of(choice, ("none", "auto", "required"), "tool_choice")
        # Hosted tools are omitted, so the list may be empty although the request has
        # tools.
        if mode == "required" and not tools:
            raise invalid_value(
                "tool_choice", "'required' needs at least one tool that can be called in 'tools'"
            )
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
                f"'tool_choice': tools of type {abbreviate(choice.type)} cannot be run here.",
                param="tool_choice",
            )


def _read_function(function: FunctionDefinition | None, path: str) -> FunctionTool:
    if function is None:
        raise missing_parameter(path)
    parameters = read_json_object(function.parameters, f"{path}.parameters")
    return FunctionTool(
        _check_name(function.name, f"{path}.name"),
        function.description,
        parameters,
        function.strict,
    )


def _read_custom(custom: CustomDefinition | None, path: str) -> CustomTool:
    if custom is None:
        raise missing_parameter(path)
    name = _check_name(custom.name, f"{path}.name")
    format = custom.format
    if (
        format is None
        or check_one_of(format.type, ("text", "grammar"), f"{path}.format.type") == "text"
    ):
        return CustomTool(name, custom.description)
    # Chat nests the grammar, Responses does not; clients send both forms.
    if format.grammar is not None:
        syntax = format.grammar.syntax
        definition = format.grammar.definition
    elif format.syntax is not None and format.definition is not None:
        syntax = format.syntax
        definition = format.definition
    else:
        raise missing_parameter(f"{path}.format.grammar")
    check_one_of(syntax, ("lark", "regex"), f"{path}.format.grammar.syntax")
    return CustomTool(name, custom.description, syntax, definition)


def _check_name(name: str, param: str) -> str:
    if not _NAME.fullmatch(name):
        raise invalid_value(
            param,
            f"expected 1 to 64 of the characters a-z, A-Z, 0-9, '_', '.' and '-', got "
            f"{abbreviate(name)}",
        )
    return name


def _check_unique(tools: Sequence[Tool], param: str) -> None:
    names: set[str] = set()
    for tool in tools:
        if tool.name in names:
            raise RequestError(
                f"'{param}' declares {abbreviate(tool.name)} twice.",
                param=param,
                code="invalid_value",
            )
        names.add(tool.name)


def _choose_named(name: str, kind: type[Tool], tools: tuple[Tool, ...], param: str) -> ToolChoice:
    if not any(tool.name == name and isinstance(tool, kind) for tool in tools):
        raise invalid_value(
            param, f"{abbreviate(name)} is not among the declared tools of that type"
        )
    return ToolChoice("required", (name,), is_named=True)


def _read_allowed(allowed: AllowedTools, tools: tuple[Tool, ...]) -> ToolChoice:
    path = "tool_choice.allowed_tools"
    mode = check_one_of(allowed.mode, ("auto", "required"), f"{path}.mode")
    declared_names = {tool.name for tool in tools}
    names = list[str]()
    for i, tool in enumerate(allowed.tools):
        reference = tool.function or tool.custom
        if reference is None:
            raise missing_parameter(f"{path}.tools[{i}].{tool.type}")
        if reference.name not in declared_names:
            raise invalid_value(
                f"{path}.tools[{i}]",
                f"{abbreviate(reference.name)} is not among the declared tools",
            )
        names.append(reference.name)
    if not names:
        raise invalid_value(f"{path}.tools", "expected at least one declared tool")
    return ToolChoice(mode, tuple(names))
