"""Chat's tools and tool choice, with the legacy `functions` and `function_call`, to the core's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...core.errors import RequestError, Unsupported
from ...core.message import CustomTool, FunctionTool, Tool, ToolChoice
from ..body import echo, invalid, json_text, missing, one_of
from .wire import (
    AllowedTools,
    ChatBody,
    CustomDefinition,
    CustomFormat,
    FunctionDefinition,
    Named,
    NamedTool,
    WireTool,
    WireToolChoice,
)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NO_CHOICE = ToolChoice()


def read_tools(tools: Sequence[WireTool], warnings: list[str]) -> tuple[Tool, ...]:
    """Function and custom tools. Hosted ones, which nothing here can run, are left out with a warning."""
    found: list[Tool] = []
    for i, tool in enumerate(tools):
        at = f"tools[{i}]"
        match tool.type:
            case "function":
                found.append(_function(tool.function, f"{at}.function"))
            case "custom":
                found.append(_custom(tool.custom, f"{at}.custom"))
            case hosted:
                warnings.append(f"{at}: tools of type {echo(hosted)} cannot be run here; it was left out")
    _check_unique(found, "tools")
    return tuple(found)


def read_functions(functions: Sequence[FunctionDefinition]) -> tuple[Tool, ...]:
    found: list[Tool] = [_function(function, f"functions[{i}]") for i, function in enumerate(functions)]
    _check_unique(found, "functions")
    return tuple(found)


def read_tool_choice(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:
    choice = body.tool_choice
    if choice is None:
        return _function_call(body.function_call, tools)
    if isinstance(choice, str):
        mode = one_of(choice, ("none", "auto", "required"), "tool_choice")
        if mode == "required" and not tools:
            raise invalid("tool_choice", "'required' needs at least one tool that can be called in 'tools'")
        return ToolChoice(mode)
    match choice:
        case WireToolChoice(type="function", function=Named(name)):
            return _named(name, FunctionTool, tools, "tool_choice.function.name")
        case WireToolChoice(type="custom", custom=Named(name)):
            return _named(name, CustomTool, tools, "tool_choice.custom.name")
        case WireToolChoice(type="allowed_tools", allowed_tools=AllowedTools() as allowed):
            return _allowed(allowed, tools)
        case WireToolChoice(type="function" | "custom" | "allowed_tools"):
            raise missing(f"tool_choice.{choice.type}")
        case _:
            raise Unsupported(
                f"'tool_choice': tools of type {echo(choice.type)} cannot be run here.", param="tool_choice"
            )


def _function_call(call: str | Named | None, tools: tuple[Tool, ...]) -> ToolChoice:
    if call is None:
        return NO_CHOICE
    if isinstance(call, Named):
        return _named(call.name, FunctionTool, tools, "function_call.name")
    return ToolChoice(one_of(call, ("none", "auto"), "function_call"))


def _function(function: FunctionDefinition | None, at: str) -> FunctionTool:
    if function is None:
        raise missing(at)
    parameters = json_text(function.parameters, f"{at}.parameters")
    return FunctionTool(_name(function.name, f"{at}.name"), function.description, parameters, function.strict)


def _custom(custom: CustomDefinition | None, at: str) -> CustomTool:
    if custom is None:
        raise missing(at)
    syntax, definition = _format(custom.format, f"{at}.format")
    return CustomTool(_name(custom.name, f"{at}.name"), custom.description, syntax, definition)


def _format(format: CustomFormat | None, at: str) -> tuple[str | None, str | None]:
    if format is None or one_of(format.type, ("text", "grammar"), f"{at}.type") == "text":
        return None, None
    if format.grammar is not None:
        syntax, definition = format.grammar.syntax, format.grammar.definition
    elif format.syntax is not None and format.definition is not None:
        syntax, definition = format.syntax, format.definition
    else:
        raise missing(f"{at}.grammar")
    return one_of(syntax, ("lark", "regex"), f"{at}.grammar.syntax"), definition


def _name(name: str, param: str) -> str:
    if not _NAME.fullmatch(name):
        raise invalid(param, f"expected 1 to 64 of the characters a-z, A-Z, 0-9, '_', '.' and '-', got {echo(name)}")
    return name


def _check_unique(tools: Sequence[Tool], param: str) -> None:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise RequestError(f"'{param}' declares {echo(tool.name)} twice.", param=param, code="invalid_value")
        seen.add(tool.name)


def _named(name: str, kind: type[Tool], tools: tuple[Tool, ...], param: str) -> ToolChoice:
    if not any(tool.name == name and isinstance(tool, kind) for tool in tools):
        raise invalid(param, f"{echo(name)} is not among the declared tools of that type")
    return ToolChoice("required", (name,), named=True)


def _allowed(allowed: AllowedTools, tools: tuple[Tool, ...]) -> ToolChoice:
    at = "tool_choice.allowed_tools"
    mode = one_of(allowed.mode, ("auto", "required"), f"{at}.mode")
    names = tuple(_allowed_names(allowed.tools, tools, f"{at}.tools"))
    if not names:
        raise invalid(f"{at}.tools", "expected at least one declared tool")
    return ToolChoice(mode, names)


def _allowed_names(named: Sequence[NamedTool], tools: tuple[Tool, ...], at: str) -> Iterator[str]:
    declared = {tool.name for tool in tools}
    for i, tool in enumerate(named):
        reference = tool.function or tool.custom
        if reference is None:
            raise missing(f"{at}[{i}].{tool.type}")
        if reference.name not in declared:
            raise invalid(f"{at}[{i}]", f"{echo(reference.name)} is not among the declared tools")
        yield reference.name
